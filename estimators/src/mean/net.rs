//! Public points from which a mean is drawn or searched: an even grid over a cube.
//!
//! A draw from finitely many data-independent points is exact and needs no bound on records.

/// A grid over [−h, h]^d.
#[derive(Clone, Copy, Debug)]
pub(super) struct Net {
    /// Number of points per axis, at least 2.
    pub(super) side: usize,
    /// d.
    pub(super) dimension: usize,
    /// h.
    pub(super) half_width: f64,
}

impl Net {
    /// Number of points per axis that are at most `spacing` apart.
    pub(super) fn side_of(half_width: f64, spacing: f64) -> f64 {
        (2.0 * half_width / spacing).ceil().max(1.0) + 1.0
    }

    pub(super) fn len(&self) -> usize {
        self.side.pow(self.dimension as u32)
    }

    pub(super) fn spacing(&self) -> f64 {
        2.0 * self.half_width / (self.side - 1) as f64
    }

    /// Returns the point with this index; the first coordinate changes fastest.
    pub(super) fn point(&self, place: usize) -> Vec<f64> {
        let steps = std::iter::successors(Some(place), |rest| Some(rest / self.side));
        let coordinate = |rest: usize| (rest % self.side) as f64 * self.spacing() - self.half_width;
        steps.take(self.dimension).map(coordinate).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_are_those_of_a_grid() {
        let net = Net { side: Net::side_of(2.0, 1.1) as usize, dimension: 2, half_width: 2.0 };
        assert_eq!((net.len(), net.spacing()), (25, 1.0));
        assert_eq!(
            [0, 1, 5, 24].map(|place| net.point(place)),
            [[-2.0, -2.0], [-1.0, -2.0], [-2.0, -1.0], [2.0, 2.0]]
        );
        assert_eq!(Net::side_of(1.0, 9.0), 2.0);
    }
}
