// ε of T Gaussian sums over Poisson samples, under add/remove: certified bounds by Fourier inversion.
// The same algorithm as tacit/accounting/inversion.py and window.py, whose texts have the formula and its proof.

const EXCESS = 5e-8, CUT = 1e-6, CLOSE = 3e-7, MOST_WORK = 1e7;

class Saddle {
  constructor(tilt, law) { this.tilt = tilt; this.law = law; }
  get value() { return this.law.value - Math.log(this.tilt) - Math.log1p(this.tilt); }
  get at() { return this.law.centre - 1 / this.tilt - 1 / (this.tilt + 1); }
  get variance() { return this.law.spread + this.tilt ** -2 + (this.tilt + 1) ** -2; }
  logDeltaAt(x) { return this.value - this.tilt * x - 0.5 * Math.log(2 * Math.PI * this.variance); }
}

const logChernoff = (v) => (v > 0 ? v * Math.log(v) - (1 + v) * Math.log1p(v) : 0);

class Inversion {
  constructor(losses, saddle, excess) {
    this.tilt = saddle.tilt; this.saddle = saddle; this.excess = excess; this.infinite = losses.infinite;
    this.choosePeriod(losses);
    const law = saddle.law, t = this.tilt, spacing = (2 * Math.PI) / this.period;
    const count = Math.ceil(this.lastFrequency(law) / spacing);
    const dense = losses.tilted(t, (count + 1) * spacing);
    if (!(count * dense.weight.length <= MOST_WORK)) throw new OutOfReach(`${count} frequencies`);
    const { real, imaginary, bound } = dense.characteristic(spacing, count);
    this.first = 1 / (t * (t + 1));
    this.y = new Float64Array(count); this.re = new Float64Array(count); this.im = new Float64Array(count);
    this.size = 0;
    let kept = 0, turned = 0;
    for (let j = 0; j < count; j++) {
      const y = spacing * (j + 1), a = t * (t + 1) - y * y, b = y * (2 * t + 1), norm = a * a + b * b; // s (s+1) = a + ib
      const size = (2 * Math.exp(real[j])) / norm, cos = Math.cos(imaginary[j]), sin = Math.sin(imaginary[j]);
      this.y[j] = y; this.re[j] = size * (cos * a + sin * b); this.im[j] = size * (sin * a - cos * b);
      const whole = 2 / Math.sqrt(norm);
      this.size += whole * Math.exp(Math.min(bound[j], Math.log(3)));
      kept += whole * Math.exp(real[j]);
      turned += whole * Math.exp(real[j]) * Math.abs(imaginary[j]);
    }
    const last = this.y[count - 1], rest = (Math.exp(law.logDecay(last)) * Math.atan2(t, last)) / t;
    this.off = this.size - kept + (rest * this.period) / Math.PI;
    this.off += 64 * EPS * (count + 1) * (this.first + this.size) + 8 * EPS * turned;
    this.centre = dense.centre; this.value = dense.value; this.doubt = dense.valueDoubt;
    this.far = Math.abs(dense.centre) * 2;
  }

  choosePeriod(losses) {
    const { saddle, tilt: t } = this;
    const near = 0.5 * Math.log(2 * Math.PI * saddle.variance) - saddle.value - Math.log(this.excess);
    const aim = Math.sqrt((2 * -Math.log(this.excess)) / saddle.variance);
    this.period = 0; this.aliases = [];
    for (const side of [1, -1]) {
      let best = [Infinity, 0, 0], shift = 1.3 * aim;
      for (let i = 0; i < 12; i++) {
        let v = t + side * shift;
        if (side < 0 && v < 0) { v = 0; shift = t; }
        const law = losses.tilted(v), bound = law.value + law.valueDoubt + logChernoff(v);
        const found = (bound - side * shift * saddle.at + near) / shift;
        if (found > best[0]) break;
        best = [found, v, bound];
        shift /= 1.5;
      }
      this.period = Math.max(this.period, best[0]);
      this.aliases.push([best[1], best[2]]);
    }
  }

  lastFrequency(law) {
    const t = this.tilt, size = t * (t + 1) * Math.sqrt(2 * Math.PI * this.saddle.variance);
    const allowed = Math.log(this.excess / size);
    const enough = (y) => law.logDecay(y) + Math.log(Math.atan2(t, y) / t / Math.PI) <= allowed;
    let low = 0, high = 4 / Math.sqrt(this.saddle.variance);
    while (!enough(high)) {
      low = high; high *= 2;
      if (high * this.period > 1e6) throw new OutOfReach("the characteristic function does not vanish");
    }
    for (let i = 0; i < 4; i++) {
      const middle = (low + high) / 2;
      if (enough(middle)) high = middle; else low = middle;
    }
    return high;
  }

  // log of a bound on δ(x), from above for sign +1, from below for -1.
  logBound(x, sign) {
    const away = x - this.centre;
    let total = this.first;
    for (let j = 0; j < this.y.length; j++) {
      const angle = this.y[j] * away;
      total += this.re[j] * Math.cos(angle) + this.im[j] * Math.sin(angle);
    }
    const turned = 8 * EPS * this.y[this.y.length - 1] * (this.far + Math.abs(x)) * this.size;
    const doubt = this.doubt + 8 * EPS * (Math.abs(this.value) + this.tilt * (Math.abs(x) + 1));
    total += sign * (this.off + turned);
    if (total <= 0) {
      if (sign > 0) throw new OutOfReach("rounding leaves nothing of the sum");
      return -Infinity;
    }
    const log = this.value - this.tilt * x + Math.log(total / this.period) + sign * doubt;
    if (sign > 0) return log;
    let aliased = 0;
    for (const [v, bound] of this.aliases) {
      const fall = Math.abs(v - this.tilt) * this.period;
      const exponent = bound - v * x - fall - log + 8 * EPS * (Math.abs(bound) + Math.abs(v * x) + fall);
      if (exponent > 0 || fall < 1e-3) return -Infinity;
      aliased += Math.exp(exponent) / -Math.expm1(-fall);
    }
    return aliased < 1 ? log + Math.log1p(-aliased) : -Infinity;
  }

  delta(epsilon) {
    const upper = Math.exp(Math.min(this.logBound(epsilon, 1), 0)) + this.infinite;
    return { upper: Math.min(upper, 1), lower: Math.exp(Math.min(this.logBound(epsilon, -1), 0)) };
  }

  solve(target, sign) {
    let x = this.saddle.at, slope = -this.tilt, before = null;
    for (let i = 0; i < 40; i++) {
      const gap = this.logBound(x, sign) - target;
      if (!Number.isFinite(gap)) throw new OutOfReach("no bound here");
      if (-1e-8 <= sign * gap && sign * gap <= -1e-12) return x;
      if (before && Math.abs(x - before[0]) > 1e-13 * Math.abs(x) && (gap - before[1]) * (x - before[0]) < 0)
        slope = (gap - before[1]) / (x - before[0]);
      before = [x, gap];
      x -= (gap + sign * 5e-9) / slope;
    }
    throw new OutOfReach("no convergence");
  }
}

function findSaddle(losses, excess, tilt, unit) {
  let low = 0, high = Infinity;
  for (let i = 0; i < 60; i++) {
    const saddle = new Saddle(tilt, losses.tilted(tilt));
    const gap = excess(saddle) / tilt ** unit;
    if (Math.abs(gap) <= Math.min(0.3 * Math.sqrt(saddle.variance), 1 / tilt) || high < low * 1.001) return saddle;
    if (gap > 0) low = tilt; else high = tilt;
    tilt *= Math.exp(Math.min(Math.max(gap / (tilt * saddle.variance), -1.5), 1.5));
    if (!(low < tilt && tilt < high)) tilt = low > 0 && high < Infinity ? Math.sqrt(low * high) : low > 0 ? 2 * low : high / 2;
    if (!(1e-12 < tilt && tilt < 1e12)) break;
  }
  throw new OutOfReach("no saddle point");
}

function saddleWithoutTail(losses, delta, excess, tilt, unit) {
  let cut = losses.withoutTail(CUT * delta, tilt);
  for (let i = 0; i < 4; i++) {
    const saddle = findSaddle(cut, excess, tilt, unit), suitable = losses.withoutTail(CUT * delta, saddle.tilt);
    tilt = saddle.tilt;
    const both = suitable.cut && cut.cut, ratio = both ? cut.cut.width / suitable.cut.width : 1;
    if (both ? ratio < 1.5 && ratio > 0.3 : !suitable.cut === !cut.cut) return [cut, saddle];
    cut = suitable;
  }
  return [cut, findSaddle(cut, excess, tilt, unit)];
}

function firstTilt(losses, digits) {
  const variance = losses.steps * losses.rate ** 2 * Math.expm1(Math.min(losses.noise ** -2, 50));
  return Math.sqrt((2 * digits) / variance);
}

function sideEpsilon(losses, delta) {
  const target = Math.log(delta);
  let [cut, saddle] = saddleWithoutTail(losses, delta, (s) => s.logDeltaAt(s.at) - target, firstTilt(losses, -target), 1);
  if (cut.infinite > 0.1 * delta) throw new OutOfReach("the tail is too heavy to cut off");
  let best = { upper: losses.largest, lower: 0 }, closeness = EXCESS;
  for (let attempt = 0; attempt < 3; attempt++) {
    try {
      const inversion = new Inversion(cut, saddle, closeness);
      const upper = Math.min(best.upper, inversion.solve(Math.log(delta - cut.infinite), 1));
      if (upper <= 0) return { upper: 0, lower: 0 };
      best = { upper, lower: Math.min(Math.max(best.lower, inversion.solve(target, -1)), upper) };
    } catch (error) {
      if (!attempt || !(error instanceof OutOfReach)) throw error;
      break;
    }
    if (best.upper - best.lower <= CLOSE * best.upper) break;
    closeness *= Math.exp(Math.min(target - saddle.logDeltaAt(best.upper), -2));
  }
  return best;
}

function sideDelta(losses, epsilon) {
  if (epsilon >= losses.largest) return { upper: 0, lower: 0 };
  let guess = 1e-5, tilt = firstTilt(losses, 12), closeness = EXCESS, found = null;
  for (let i = 0; i < 8; i++) {
    const [cut, saddle] = saddleWithoutTail(losses, guess, (s) => epsilon - s.at, tilt, 0);
    found = new Inversion(cut, saddle, closeness).delta(epsilon);
    if (cut.infinite > 1e-5 * found.upper && guess > 1e-290) {
      guess = Math.max(Math.min(found.upper, guess ** 2), 1e-295); tilt = saddle.tilt;
    } else if (found.upper - found.lower > CLOSE * found.upper && closeness > 1e-14) {
      closeness *= Math.exp(Math.min(Math.log(found.upper) - saddle.logDeltaAt(epsilon), -3));
    } else break;
  }
  return found;
}

// Where inversion is out of reach: Chernoff's bound δ <= C(v) e^(K(v) - vε) at the best v, which is the Rényi accountant's.
function chernoffExponents(losses, value) {
  let best = null, low = 1e-4, high = 1e4;
  const at = (v) => { const law = losses.tilted(v); return value(v, law.value + law.valueDoubt + logChernoff(v)); };
  for (let i = 0; i < 60; i++) { // golden section in log v; any v gives a bound
    const a = Math.exp(Math.log(low) + 0.382 * Math.log(high / low)), b = Math.exp(Math.log(low) + 0.618 * Math.log(high / low));
    let [x, y] = [Infinity, Infinity];
    try { x = at(a); y = at(b); } catch (error) { if (!(error instanceof OutOfReach)) throw error; }
    best = Math.min(best ?? Infinity, x, y);
    if (x <= y) high = b; else low = a;
  }
  return best;
}

function worst(rate, noise, steps, exact, rough) {
  const sides = [false, true].map((added) => {
    const losses = new Sampled(rate, noise, steps, added);
    try { return exact(losses); } catch (error) {
      if (!(error instanceof OutOfReach)) throw error;
      return { upper: rough(losses) * (1 + 1e-9), lower: null };
    }
  });
  const [first, second] = sides, higher = first.upper >= second.upper ? first : second;
  const lowers = sides.map((side) => side.lower ?? 0);
  return { upper: higher.upper, lower: higher.lower === null ? null : Math.max(...lowers) };
}

// log(1 - q + q e^loss) and its inverse, for the closed form of one step (tacit/accounting/single.py).
const sampledLoss = (loss, rate) => logMixture(rate, loss);
const unsampledLoss = (loss, rate) =>
  loss < 30 ? Math.log1p(Math.expm1(loss) / rate) : loss - Math.log(rate) + Math.log1p((rate - 1) * Math.exp(-loss));

// Certified {upper, lower} bounds (lower null where only the Rényi bound is in reach) on the least ε with δ(ε) <= delta.
function epsilonOf(rate, noise, steps, delta) {
  if (rate >= 1) {
    const shift = Math.sqrt(steps) / noise;
    return { upper: gaussianEpsilon(shift, delta, 1) * (1 + 1e-12), lower: gaussianEpsilon(shift, delta, -1) * (1 - 1e-9) };
  }
  if (steps === 1) {
    if (delta >= rate) return { upper: 0, lower: 0 };
    const one = (sign) => sampledLoss(gaussianEpsilon(1 / noise, (delta / rate) * (1 - sign * 4 * EPS), sign), rate);
    return { upper: one(1) * (1 + 1e-12), lower: one(-1) * (1 - 1e-9) };
  }
  const rough = (losses) => Math.max(chernoffExponents(losses, (v, bound) => (bound - Math.log(delta)) / v), 0);
  return worst(rate, noise, steps, (losses) => sideEpsilon(losses, delta), rough);
}

// Likewise bounds on δ(epsilon).
function deltaOf(rate, noise, steps, epsilon) {
  const within = (upper, lower) => ({ upper: Math.min(upper * (1 + 1e-9), 1), lower: lower * (1 - 1e-9) });
  if (rate >= 1) {
    const log = (sign) => gaussianLogDelta(Math.sqrt(steps) / noise, epsilon, sign);
    return within(Math.exp(log(1)), Math.exp(log(-1)));
  }
  if (steps === 1) {
    const log = (sign) => gaussianLogDelta(1 / noise, unsampledLoss(epsilon, rate) * (1 - sign * 1e-14), sign);
    return within(rate * Math.exp(log(1)), rate * Math.exp(log(-1)));
  }
  const rough = (losses) => Math.exp(Math.min(chernoffExponents(losses, (v, bound) => bound - v * epsilon), 0));
  return worst(rate, noise, steps, (losses) => sideDelta(losses, epsilon), rough);
}
