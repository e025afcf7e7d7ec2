// Are two means over seeds further apart than chance? Welch's t-test, which allows for different variances.

// log Γ by Lanczos's series.
function logGamma(z) {
  const series = [76.18009172947146, -86.50532032941677, 24.01409824083091, -1.231739572450155,
                  0.1208650973866179e-2, -0.5395239384953e-5];
  const base = z + 5.5 - (z + 0.5) * Math.log(z + 5.5);
  const sum = series.reduce((total, term, i) => total + term / (z + 1 + i), 1.000000000190015);
  return Math.log(2.5066282746310005 * sum / z) - base;
}

// The regularised incomplete beta function, by its continued fraction (Lentz's method).
function incompleteBeta(x, a, b) {
  if (x <= 0 || x >= 1) return x <= 0 ? 0 : 1;
  if (x > (a + 1) / (a + b + 2)) return 1 - incompleteBeta(1 - x, b, a);
  const front = Math.exp(logGamma(a + b) - logGamma(a) - logGamma(b) + a * Math.log(x) + b * Math.log(1 - x)) / a;
  const safe = (value) => Math.abs(value) < 1e-300 ? 1e-300 : value;
  let c = 1, d = 1 / safe(1 - (a + b) * x / (a + 1)), fraction = d;
  for (let m = 1; m < 500; m += 1) {
    for (const term of [m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
                        -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))]) {
      d = 1 / safe(1 + term * d);
      c = safe(1 + term / c);
      fraction *= c * d;
    }
    if (Math.abs(c * d - 1) < 1e-14) break;
  }
  return front * fraction;
}

// How likely |T| ≥ t is, for Student's T.
const twoSided = (t, freedom) => incompleteBeta(freedom / (freedom + t * t), freedom / 2, 0.5);

// The t that |T| exceeds with this probability, by bisection.
function quantile(probability, freedom) {
  let [low, high] = [0, 1];
  while (twoSided(high, freedom) > probability) high *= 2;
  for (let i = 0; i < 80; i += 1) {
    const middle = (low + high) / 2;
    if (twoSided(middle, freedom) > probability) low = middle; else high = middle;
  }
  return (low + high) / 2;
}

// The difference of two lists of values: { difference, reach (half its 95 % interval), freedom, p }. With one seed,
// nothing but the difference is known.
function welch(ours, theirs) {
  const [one, other] = [measured(ours), measured(theirs)];
  if (!one.length || !other.length) return null;
  const difference = mean(one) - mean(other);
  if (one.length < 2 || other.length < 2) return { difference, reach: null, freedom: null, p: null };
  const [a, b] = [one, other].map((values) => deviation(values) ** 2 / values.length);
  const error = Math.sqrt(a + b);
  if (error === 0) return { difference, reach: 0, freedom: Infinity, p: difference ? 0 : 1 };
  const freedom = (a + b) ** 2 / (a * a / (one.length - 1) + b * b / (other.length - 1));
  return { difference, freedom, p: twoSided(difference / error, freedom), reach: error * quantile(0.05, freedom) };
}

const writtenChance = (p) => p < 0.001 ? "p < 0.001" : `p = ${p.toFixed(3)}`;
