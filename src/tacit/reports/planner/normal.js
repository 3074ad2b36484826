// The normal distribution in double precision, and the Gaussian mechanism in closed form (tacit/accounting/gaussian.py).

const EPS = 2 ** -52;

// log Φ(x): a series of positive terms near 0, a continued fraction in the tails. Off by at most about 1e-13 of itself.
function logNdtr(x) {
  const z = Math.abs(x) / Math.SQRT2;
  if (z <= 1.6) {
    let term = z, sum = z;
    for (let n = 1; n < 80 && term > EPS * sum; n++) { term *= (2 * z * z) / (2 * n + 1); sum += term; }
    const erf = (2 / Math.sqrt(Math.PI)) * Math.exp(-z * z) * sum;
    return x < 0 ? Math.log(0.5 * (1 - erf)) : Math.log(0.5 * (1 + erf));
  }
  let fraction = z;
  for (let n = 160; n > 0; n--) fraction = z + n / 2 / fraction;
  const log = -z * z - Math.log(fraction * 2 * Math.sqrt(Math.PI)); // of the smaller tail
  return x < 0 ? log : Math.log1p(-Math.exp(log));
}

const ndtr = (x) => Math.exp(logNdtr(x));

// The x with Φ(x) = p, by bisection: it chooses where to cut and needs no last digits.
function ndtri(p) {
  const target = Math.log(p);
  let low = -40, high = 40;
  for (let i = 0; i < 60; i++) {
    const middle = (low + high) / 2;
    if (logNdtr(middle) < target) low = middle; else high = middle;
  }
  return (low + high) / 2;
}

// log δ(ε) of N(shift, 1) against N(0, 1) (Balle & Wang 2018), from above for sign +1 and from below for -1.
function gaussianLogDelta(shift, epsilon, sign) {
  const inside = logNdtr(shift / 2 - epsilon / shift), other = logNdtr(-shift / 2 - epsilon / shift);
  const slack = 1e-13 * (2 + Math.abs(epsilon) + Math.abs(other) + Math.abs(inside));
  const ratio = epsilon + other - inside - sign * slack;
  return ratio < 0 ? inside + Math.log(-Math.expm1(ratio)) + sign * slack : -Infinity;
}

// The least ε >= 0 with δ(ε) <= delta, an end of a bisection.
function gaussianEpsilon(shift, delta, sign) {
  const target = Math.log(delta);
  if (gaussianLogDelta(shift, 0, sign) <= target) return 0;
  let low = 0, high = shift;
  while (gaussianLogDelta(shift, high, sign) > target) { low = high; high *= 2; }
  for (let i = 0; i < 100 && high - low > 1e-13 * high; i++) {
    const middle = (low + high) / 2;
    if (gaussianLogDelta(shift, middle, sign) > target) low = middle; else high = middle;
  }
  return sign > 0 ? high : low;
}
