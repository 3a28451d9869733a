//! Warnings about a budget before it is spent.

/// Largest δ without a warning if the number of records is unknown.
const LARGE_DELTA: f64 = 1e-3;

/// Returns a warning if δ is too large: at least one over the number of records or entities, if
/// that is known, or above [`LARGE_DELTA`]. Publishing a random record as it is has such a δ.
pub(super) fn large_delta(delta: f64, units: Option<f64>) -> Option<String> {
    let is_large = delta > LARGE_DELTA || units.is_some_and(|units| delta * units >= 1.0);
    is_large.then(|| {
        format!(
            "δ = {delta} is large: it allows that everything about one record in {} is revealed. Choose it far below one over the number \
             of records or entities, such as 1e-6",
            (1.0 / delta).round()
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delta_is_compared_with_the_number_of_records() {
        assert!(large_delta(0.2, None).is_some_and(|warning| warning.contains("one record in 5 ")));
        assert!(large_delta(1e-4, None).is_none());
        assert!(large_delta(1e-4, Some(2e4)).is_some());
        assert!(large_delta(1e-6, Some(2e4)).is_none());
    }
}
