// One sampled Gaussian sum seen from one side, tilted, on the nodes of the trapezoidal rule.
// The mathematics, and every bound on an error, is in the texts of tacit/accounting/characteristic.py and tilted.py.

const DIGITS = 40, WIDTH = 9.5, MOST_NODES = 200000;
const BINS = 96, ENDS = [0.7, 2.0, 4.5], LOBE = 0.2173;

class OutOfReach extends Error {}

// log(1 - q + q e^x) to full relative precision.
function logMixture(rate, x) {
  if (x > 30) return Math.log(rate) + x + Math.log1p(((1 - rate) / rate) * Math.exp(-x));
  if (rate > 0.5 && x < -1) return Math.log(1 - rate + rate * Math.exp(x));
  return Math.log1p(rate * Math.expm1(x));
}

// The sum of positive numbers, off by at most 2 EPS of itself (Neumaier).
function sumOf(values) {
  let sum = 0, lost = 0;
  for (const value of values) {
    const next = sum + value;
    lost += sum >= value ? sum - next + value : value - next + sum;
    sum = next;
  }
  return sum + lost;
}

const BLOCK = 32; // terms added in order; the sums of blocks are added in order too

class Sampled {
  // steps sums over Poisson samples; the record is removed, or added. cut: {place, width} of the factor Φ((place - x)/width).
  constructor(rate, noise, steps, added, cut = null) {
    Object.assign(this, { rate, noise, steps, added, cut });
  }

  power(tilt) { return this.added ? -tilt : tilt + 1; }

  get largest() { return this.added ? -this.steps * Math.log1p(-this.rate) * (1 + 1e-12) : Infinity; }

  get infinite() { // the mass that the cut takes away, at most
    if (!this.cut) return 0;
    const spread = Math.sqrt(1 + this.cut.width ** 2);
    const sampled = this.rate * ndtr((1 / this.noise - this.cut.place) / spread);
    return this.steps * (sampled + ndtr(-this.cut.place / spread)) * (1 + 1e-9);
  }

  withoutTail(mass, tilt) {
    if (this.added) return this;
    const tail = mass / this.steps, reach = this.power(tilt) / this.noise;
    let place = 0, width = 1;
    for (let i = 0; i < 3; i++) {
      width = Math.min(Math.max(1.5 / Math.max(reach - place, 1e-9), 0.02), 1);
      const spread = Math.sqrt(1 + width * width);
      place = Math.max(-spread * ndtri(tail / 2), 1 / this.noise - spread * ndtri(Math.min(tail / (2 * this.rate), 0.5)));
    }
    return new Sampled(this.rate, this.noise, this.steps, this.added, reach > place ? { place, width } : null);
  }

  spacing(fall, reach) {
    const noise = this.noise, bend = this.cut ? 1 + this.cut.width ** -2 : 1;
    let strip = Math.sqrt(DIGITS / (bend / 2 + fall / (8 * noise * noise)));
    strip = Math.min(strip, (fall > 0 ? 0.9 : 0.98) * Math.PI * noise);
    const growth = (bend * strip * strip) / 2 + (reach * strip) / noise - fall * Math.log(Math.cos(strip / (2 * noise)));
    return (2 * Math.PI * strip) / (DIGITS + growth + 1);
  }

  modes(power) {
    const noise = this.noise;
    if (power > 0) {
      let high = power / noise;
      if (this.cut) {
        const inverse = this.cut.width ** -2;
        high = Math.min(high, (high + this.cut.place * inverse) / (1 + inverse));
      }
      return [0, high];
    }
    let low = power / noise, high = 0;
    const bias = Math.log(this.rate) - Math.log1p(-this.rate) - 0.5 / noise / noise;
    for (let i = 0; i < 12 && high - low >= 0.5; i++) {
      const middle = (low + high) / 2;
      const slope = (0.5 * (1 + Math.tanh((middle / noise + bias) / 2))) / noise;
      if (power * slope > middle) low = middle; else high = middle;
    }
    return [low, high];
  }

  tilted(tilt, reach = 0) {
    const { rate, noise, cut } = this, power = this.power(tilt);
    const step = this.spacing(Math.max(-power, 0), reach), [low, high] = this.modes(power);
    const nodes = Math.ceil((high - low + 2 * WIDTH) / step) + 2;
    if (!(nodes <= MOST_NODES)) throw new OutOfReach(`${nodes} nodes`);
    const x = new Float64Array(nodes), loss = new Float64Array(nodes), weight = new Float64Array(nodes);
    const hurt = new Float64Array(nodes), blur = new Float64Array(nodes);
    let top = -Infinity;
    for (let k = 0; k < nodes; k++) {
      x[k] = low - WIDTH + step * k;
      const ratio = x[k] / noise - 0.5 / noise / noise, value = logMixture(rate, ratio);
      let exponent = power * value - (x[k] * x[k]) / 2, square = x[k] * x[k];
      if (cut) {
        const away = (cut.place - x[k]) / cut.width, below = Math.min(away, 0);
        exponent += logNdtr(away);
        square += below * (below - (Math.abs(x[k]) + cut.place) / cut.width) + 200; // logNdtr is off by 1e-13
      }
      loss[k] = value; weight[k] = exponent; hurt[k] = square;
      const part = Math.exp(Math.min(Math.log(rate) + ratio - value, 0));
      blur[k] = 4 * EPS * (Math.abs(value) + (part * (Math.abs(x[k]) + 1 / noise)) / noise + (rate > 0.5 ? 4 : 0));
      if (exponent > top) top = exponent;
    }
    for (let k = 0; k < nodes; k++) weight[k] = Math.exp(weight[k] - top);
    const total = sumOf(weight);
    const missed = ((weight[0] + weight[nodes - 1]) * 1.2534) / (total * step) + 2 * Math.exp(-DIGITS);
    const sign = this.added ? -1 : 1;
    let mean = 0, doubt = 0;
    for (let k = 0; k < nodes; k++) {
      weight[k] /= total;
      loss[k] *= sign;
      mean += weight[k] * loss[k];
      hurt[k] = 4 * EPS * (hurt[k] + Math.abs(top) + 32) + Math.abs(power) * blur[k];
      doubt += weight[k] * hurt[k];
    }
    let variance = 0;
    for (let k = 0; k < nodes; k++) { loss[k] -= mean; variance += weight[k] * loss[k] * loss[k]; }
    const logMass = top + Math.log((total * step) / Math.sqrt(2 * Math.PI));
    doubt += missed + 8 * EPS * Math.abs(logMass);
    return new Tilted(this, { tilt, x, weight, loss, mean, variance, logMass, missed, doubt, hurt, blur });
  }
}

class Tilted {
  constructor(source, fields) { this.source = source; Object.assign(this, fields); }

  get value() { return this.source.steps * this.logMass; } // K(t) of the whole sum
  get valueDoubt() { return this.source.steps * this.doubt + 8 * EPS * Math.abs(this.value); }
  get centre() { return this.source.steps * this.mean; } // K'(t)
  get spread() { return this.source.steps * this.variance; } // K''(t)

  // log of the sum's centred characteristic function at spacing · 1 .. count, and a bound on its modulus.
  characteristic(spacing, count) {
    const { weight, loss, hurt, blur, missed } = this, steps = this.source.steps, nodes = weight.length;
    const real = new Float64Array(count), imaginary = new Float64Array(count), bound = new Float64Array(count);
    let flat = 0, sloped = 0, blurred = 0;
    for (let k = 0; k < nodes; k++) {
      const each = hurt[k] + this.doubt + EPS * (64 + 2 * BLOCK + (2 * nodes) / BLOCK), size = Math.abs(loss[k]);
      flat += 2 * weight[k] * each;
      sloped += weight[k] * each * size;
      blurred += weight[k] * (16 * EPS * size + blur[k]);
    }
    for (let j = 0; j < count; j++) {
      const y = spacing * (j + 1);
      let re = 0, im = 0;
      for (let start = 0; start < nodes; start += BLOCK) {
        let a = 0, b = 0;
        for (let k = start; k < Math.min(start + BLOCK, nodes); k++) {
          const half = (y * loss[k]) / 2, sine = Math.sin(half);
          a -= 2 * weight[k] * sine * sine;
          b += 2 * weight[k] * sine * Math.cos(half);
        }
        re += a; im += b;
      }
      const modulus = Math.max(Math.hypot(1 + re, im), 1e-300);
      const square = Math.max(re * (2 + re) + im * im, -0.9);
      const size = modulus > 0.5 ? 0.5 * Math.log1p(square) : Math.log(modulus);
      const off = Math.min(flat, sloped * y) + blurred * y + 4 * missed + 8 * EPS * Math.hypot(re, im);
      real[j] = steps * size;
      imaginary[j] = steps * Math.atan2(im, 1 + re);
      bound[j] = steps * (size + Math.log1p(off / modulus)) + 8 * EPS;
    }
    return { real, imaginary, bound };
  }

  // A bound on log |characteristic function| at every frequency from this one on.
  logDecay(frequency) {
    if (!this.layers) {
      const peak = this.x[this.weight.indexOf(Math.max(...this.weight))];
      this.layers = ENDS.map((end) => this.layersBetween(peak - 5, peak + end));
    }
    let best = 0;
    for (const { mass, width } of this.layers) {
      let kept = 0;
      for (let i = 0; i < mass.length; i++) {
        const half = (frequency * width[i]) / 2, sinc = half > 0 ? Math.sin(half) / half : 1;
        kept += mass[i] * (1 - (half < 2.6 && sinc > LOBE ? sinc : Math.min(LOBE, 1 / Math.max(half, 1))));
      }
      best = Math.max(best, kept);
    }
    return (this.source.steps * Math.log1p(-Math.min(best, 1 - 1e-12))) / 2;
  }

  // Masses and widths of nested intervals below the density of the difference of two losses.
  layersBetween(low, high) {
    const { rate, noise, cut } = this.source, power = this.source.power(this.tilt);
    const first = logMixture(rate, low / noise - 0.5 / noise / noise);
    const width = (logMixture(rate, high / noise - 0.5 / noise / noise) - first) / BINS;
    const bin = [], x = [], ratio = [], inner = [];
    for (let i = 0; i <= BINS; i++) {
      bin.push(first + width * i);
      inner.push(Math.expm1(Math.min(bin[i], 30)) / rate + 1);
      ratio.push(bin[i] > 30 ? bin[i] - Math.log(rate) : Math.log(Math.max(inner[i], 1e-300)));
      x.push(noise * ratio[i] + 0.5 / noise);
    }
    const mass = [];
    for (let i = 0; i < BINS; i++) {
      let least = -Math.max(x[i] ** 2, x[i + 1] ** 2) / 2 + Math.min(power * bin[i], power * bin[i + 1]);
      if (cut) least += logNdtr((cut.place - x[i + 1]) / cut.width) - 1e-12;
      const slope = Math.min(Math.log(rate) + ratio[i + 1] - bin[i + 1], 0) - Math.log(noise);
      const density = least - this.logMass - 0.5 * Math.log(2 * Math.PI) - slope;
      mass.push(inner[i] < 1e-6 ? 0 : Math.exp(Math.min(density, 600)) * width * (1 - 1e-6));
    }
    const falling = [];
    for (let i = 0; i <= BINS; i++) {
      let overlap = 0;
      for (let k = 0; k + i < BINS; k++) overlap += mass[k] * mass[k + i];
      falling.push(i ? Math.min(overlap, falling[i - 1]) : overlap);
    }
    const layers = { mass: [], width: [] };
    for (let i = 1; i < BINS; i++) {
      layers.mass.push((falling[i] - falling[i + 1]) * 2 * i);
      layers.width.push(2 * width * i);
    }
    return layers;
  }
}
