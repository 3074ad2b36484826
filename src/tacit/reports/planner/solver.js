// Solve for the one quantity of a plan that is left free. Between queries the page gets a turn: await breathe().

const stepsOf = (epochs, records, lot) => Math.max(1, Math.ceil((epochs * records) / lot - 1e-9));

// The lowest ε that a plan is proved to keep.
function planEpsilon(plan) {
  return epsilonOf(plan.lot / plan.records, plan.noise, stepsOf(plan.epochs, plan.records, plan.lot), plan.delta).upper;
}

// The end of [low, high] nearest to the other side at which fits() holds; fits is true at `good` and false at `bad`.
async function boundary(good, bad, fits, whole) {
  for (let i = 0; i < 60; i++) {
    const middle = whole ? Math.round(Math.sqrt(good * bad)) : Math.sqrt(good * bad);
    if (middle === good || middle === bad || Math.abs(Math.log(good / bad)) < 1e-6) break;
    if (await fits(middle)) good = middle; else bad = middle;
  }
  if (whole) while (Math.abs(good - bad) > 1) { const middle = Math.floor((good + bad) / 2); if (await fits(middle)) good = middle; else bad = middle; }
  return good;
}

// Fill in plan[free]; throws a sentence where nothing fits.
async function solvePlan(plan, free, breathe) {
  const fits = async (change) => { await breathe(); return planEpsilon({ ...plan, ...change }) <= plan.epsilon; };
  if (free === "epsilon") return { ...plan, epsilon: planEpsilon(plan) };
  if (free === "delta") {
    const found = deltaOf(plan.lot / plan.records, plan.noise, stepsOf(plan.epochs, plan.records, plan.lot), plan.epsilon);
    return { ...plan, delta: found.upper };
  }
  if (free === "noise") {
    let good = 1;
    while (!(await fits({ noise: good }))) { good *= 2; if (good > 1e6) throw new Error("No noise reaches this ε: raise ε, or train for fewer epochs."); }
    let bad = good / 2;
    while (await fits({ noise: bad })) { good = bad; bad /= 2; if (bad < 0.01) return { ...plan, noise: good }; }
    return { ...plan, noise: await boundary(good, bad, (noise) => fits({ noise }), false) };
  }
  if (free === "epochs") {
    const least = plan.lot / plan.records;
    if (!(await fits({ epochs: least }))) throw new Error("Even one step costs more than this ε: add noise, or raise ε.");
    if (await fits({ epochs: 1e5 })) return { ...plan, epochs: 1e5 };
    const steps = await boundary(1, stepsOf(1e5, plan.records, plan.lot), (count) => fits({ epochs: count * least }), true);
    return { ...plan, epochs: steps * least };
  }
  if (!(await fits({ lot: 1 }))) throw new Error("Even lots of one record cost more than this ε: add noise, or raise ε.");
  if (await fits({ lot: plan.records })) return { ...plan, lot: plan.records };
  return { ...plan, lot: await boundary(1, plan.records, (lot) => fits({ lot }), true) };
}

// The least true-positive rate bound at each false-positive rate, from (ε, δ) pairs that hold (Kairouz, Oh & Viswanath 2015).
function attackBounds(curve, rates) {
  return rates.map((rate) => {
    let best = 1;
    for (const [epsilon, delta] of curve)
      best = Math.min(best, Math.exp(Math.min(epsilon, 700)) * rate + delta, 1 - Math.exp(-epsilon) * (1 - delta - rate));
    return Math.max(best, rate);
  });
}

// Solve a plan and call say() with each part as it is found: the plan and its interval, the curve δ(ε), ε over epochs.
async function explain(plan, free, say, breathe) {
  const solved = await solvePlan(plan, free, breathe), rate = solved.lot / solved.records;
  const steps = stepsOf(solved.epochs, solved.records, solved.lot);
  const interval = free === "delta" ? { upper: solved.epsilon, lower: null } : epsilonOf(rate, solved.noise, steps, solved.delta);
  say({ solved, steps, interval });
  const curve = [], growth = [];
  for (let i = 0; i <= 16; i++) {
    await breathe();
    const epsilon = (Math.max(2 * interval.upper, 0.1) * i) / 16;
    curve.push([epsilon, deltaOf(rate, solved.noise, steps, epsilon).upper]);
  }
  say({ curve });
  for (let i = 1; i <= 12; i++) {
    await breathe();
    const count = Math.max(1, Math.round(steps * (i / 12) ** 2)); // ε rises fastest at the start
    if (growth.length && (count * solved.lot) / solved.records <= growth[growth.length - 1][0]) continue;
    growth.push([(count * solved.lot) / solved.records, epsilonOf(rate, solved.noise, count, solved.delta).upper]);
  }
  say({ growth });
}
