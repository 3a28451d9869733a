//! Minimises a smooth function of a few variables: BFGS with the weak Wolfe conditions (Nocedal and
//! Wright, Numerical Optimization, chapters 3 and 6).
//!
//! Implemented here because it is short, fits have at most 24 variables, and plain loops give the
//! same digits on every machine.

/// Sufficient decrease, and curvature.
const WOLFE: [f64; 2] = [1e-4, 0.9];

/// Longest first step in any variable.
const FIRST_STEP: f64 = 0.5;

#[derive(Clone, Debug)]
pub(super) struct DescentPoint {
    pub(super) variables: Vec<f64>,
    pub(super) value: f64,
    gradient: Vec<f64>,
}

/// A function to minimise: returns its value and its gradient.
pub(super) type Function<'a> = dyn Fn(&[f64]) -> (f64, Vec<f64>) + 'a;

/// Descends from `start` until a step gains less than `tolerance`, or for `steps` steps. Values
/// that are not finite count as infinite.
pub(super) fn minimize(function: &Function<'_>, start: &[f64], steps: usize, tolerance: f64) -> DescentPoint {
    let mut point = evaluate(function, start.to_vec());
    let mut inverse = identity(start.len());
    for step in 0..steps {
        let mut direction: Vec<f64> = inverse.iter().map(|row| -dot(row, &point.gradient)).collect();
        if step == 0 {
            let longest = direction.iter().fold(FIRST_STEP, |longest, d| longest.max(d.abs()));
            direction.iter_mut().for_each(|d| *d *= FIRST_STEP / longest);
        }
        let Some(next) = search(function, &point, &direction) else { break };
        update(&mut inverse, &point, &next, step == 0);
        let gain = point.value - next.value;
        point = next;
        if gain <= tolerance {
            break;
        }
    }
    point
}

fn evaluate(function: &Function<'_>, variables: Vec<f64>) -> DescentPoint {
    let (value, gradient) = function(&variables);
    let finite = value.is_finite() && gradient.iter().all(|slope| slope.is_finite());
    DescentPoint { variables, value: if finite { value } else { f64::INFINITY }, gradient }
}

/// Returns a point along the direction that satisfies the Wolfe conditions, or at least lies lower;
/// `None` if none is found.
fn search(function: &Function<'_>, from: &DescentPoint, direction: &[f64]) -> Option<DescentPoint> {
    let slope = dot(&from.gradient, direction);
    let (mut low, mut high, mut length) = (0.0, f64::INFINITY, 1.0);
    let mut best = None;
    for _ in 0..40 {
        let variables = from.variables.iter().zip(direction).map(|(x, d)| x + length * d).collect();
        let point = evaluate(function, variables);
        if point.value.is_infinite() || point.value > from.value + WOLFE[0] * length * slope {
            high = length;
        } else {
            low = length;
            let flat = dot(&point.gradient, direction) >= WOLFE[1] * slope;
            best = Some(point);
            if flat {
                break;
            }
        }
        length = if high.is_finite() { 0.5 * (low + high) } else { 2.0 * low };
    }
    best.filter(|point| point.value < from.value)
}

/// BFGS update of the inverse Hessian.
fn update(inverse: &mut [Vec<f64>], from: &DescentPoint, to: &DescentPoint, first: bool) {
    let difference = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a - b).collect::<Vec<f64>>();
    let step = difference(&to.variables, &from.variables);
    let change = difference(&to.gradient, &from.gradient);
    let curvature = dot(&step, &change);
    if curvature <= 0.0 {
        return;
    }
    if first {
        let scale = curvature / dot(&change, &change);
        inverse.iter_mut().flatten().for_each(|entry| *entry *= scale);
    }
    let applied: Vec<f64> = inverse.iter().map(|row| dot(row, &change)).collect();
    let factor = (1.0 + dot(&change, &applied) / curvature) / curvature;
    for (i, row) in inverse.iter_mut().enumerate() {
        for (j, entry) in row.iter_mut().enumerate() {
            *entry += factor * step[i] * step[j] - (applied[i] * step[j] + step[i] * applied[j]) / curvature;
        }
    }
}

fn identity(size: usize) -> Vec<Vec<f64>> {
    (0..size).map(|i| (0..size).map(|j| if i == j { 1.0 } else { 0.0 }).collect()).collect()
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_valley_of_rosenbrock_is_followed_to_its_end() {
        let function = |x: &[f64]| {
            let (a, b) = (1.0 - x[0], x[1] - x[0] * x[0]);
            (a * a + 100.0 * b * b, vec![-2.0 * a - 400.0 * x[0] * b, 200.0 * b])
        };
        let found = minimize(&function, &[-1.2, 1.0], 200, 1e-30);
        assert!(found.value < 1e-20, "{found:?}");
    }

    #[test]
    fn edges_of_the_domain_are_respected() {
        let function = |x: &[f64]| (x[0] - libm::log(x[0]), vec![1.0 - 1.0 / x[0]]);
        let found = minimize(&function, &[50.0], 200, 1e-16);
        assert!((found.variables[0] - 1.0).abs() < 1e-6, "{found:?}");
    }
}
