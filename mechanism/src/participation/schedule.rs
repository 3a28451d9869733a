//! A schema applied to a horizon: the number of participations that fit, and the maximal patterns.
//! Steps count from 0 here, like columns of a matrix.

use std::ops::Range;

/// A participation schema on steps 0..`horizon`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Schedule {
    horizon: usize,
    count: usize,
    gap: usize,
    flexible: bool,
}

impl Schedule {
    /// At most `count` ≥ 1 participations, `gap` apart, or at least `gap` apart if `flexible`.
    /// `gap` is at least 1.
    pub(super) fn new(horizon: usize, count: usize, gap: usize, flexible: bool) -> Self {
        let count = count.min(horizon.div_ceil(gap));
        // A larger gap fits, and the pattern of all steps does not contain all others.
        let differs = count > 1 && gap + 1 < horizon && count < horizon;
        Self { horizon, count, gap, flexible: flexible && differs }
    }

    /// Number of steps.
    pub fn horizon(self) -> usize {
        self.horizon
    }

    /// Largest number of participations of one entity that fit.
    pub fn count(self) -> usize {
        self.count
    }

    /// Steps from one participation to the next, or the least number of them.
    pub fn gap(self) -> usize {
        self.gap
    }

    /// Whether gaps may exceed [`gap`](Self::gap), so that patterns differ in more than their
    /// start.
    pub fn is_flexible(self) -> bool {
        self.flexible
    }

    /// First steps of the maximal patterns with equal gaps: patterns that cannot be extended to the
    /// left, and patterns that already have all participations.
    pub fn starts(self) -> Range<usize> {
        let full = self.horizon - self.count.saturating_sub(1) * self.gap;
        0..full.max(self.gap.min(self.horizon))
    }

    /// The pattern with equal gaps that starts at `start`.
    pub fn pattern(self, start: usize) -> Vec<usize> {
        (start..self.horizon).step_by(self.gap).take(self.count).collect()
    }

    /// Patterns that start in `starts` and cannot be extended to the right, including all maximal
    /// ones; `None` if there are more than `limit`.
    pub fn patterns(self, starts: Range<usize>, limit: usize) -> Option<Vec<Vec<usize>>> {
        if !self.flexible {
            return (starts.len() <= limit).then(|| starts.map(|start| self.pattern(start)).collect());
        }
        let (mut found, mut open) = (Vec::new(), starts.map(|start| vec![start]).collect::<Vec<_>>());
        while let Some(pattern) = open.pop() {
            let next = pattern.last().map_or(0, |last| last + self.gap);
            if pattern.len() == self.count || next >= self.horizon {
                found.push(pattern);
            } else {
                open.extend((next..self.horizon).map(|step| [pattern.as_slice(), &[step]].concat()));
            }
            if found.len() + open.len() > limit.max(self.horizon) {
                return None;
            }
        }
        Some(found)
    }

    /// First steps of all patterns; with variable gaps these go beyond [`starts`](Self::starts).
    pub fn first_steps(self) -> Range<usize> {
        if self.flexible { 0..self.horizon } else { self.starts() }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Participation;
    use super::*;
    use std::collections::BTreeSet;

    fn schedule(text: &str, horizon: usize) -> Schedule {
        text.parse::<Participation>().unwrap().on(horizon)
    }

    fn patterns(text: &str, horizon: usize) -> Vec<Vec<usize>> {
        let schedule = schedule(text, horizon);
        schedule.patterns(schedule.first_steps(), 1000).unwrap()
    }

    #[test]
    fn as_many_as_fit() {
        let counts = |kind: &str| [1, 2, 3, 4, 5].map(|gap| schedule(&format!("9x{gap}{kind}"), 5).count());
        assert_eq!(counts(""), [5, 3, 2, 2, 1]);
        assert_eq!(counts("+"), [5, 3, 2, 2, 1]);
        assert_eq!(schedule("20x100", 2000).count(), 20);
        assert_eq!(schedule("1", 7).count(), 1);
        assert_eq!(schedule("every-step", 7).count(), 7);
        let huge = format!("{0}x{0}", u64::MAX);
        assert_eq!(patterns(&huge, 2), [[0], [1]]);
        assert_eq!(patterns(&(huge + "+"), 2), [[0], [1]]);
        assert_eq!(schedule("3x2+", 0).count(), 0);
        assert!(patterns("3x2", 0).is_empty() && patterns("every-step", 0).is_empty());
    }

    #[test]
    fn fixed_patterns_are_cut_at_the_horizon_and_start_anywhere() {
        assert_eq!(patterns("3x2", 6), [vec![0, 2, 4], vec![1, 3, 5]]);
        assert_eq!(patterns("2x3", 9), [[0, 3], [1, 4], [2, 5], [3, 6], [4, 7], [5, 8]]);
        assert_eq!(patterns("3x2", 5), [vec![0, 2, 4], vec![1, 3]]);
        assert_eq!(patterns("1", 3), [[0], [1], [2]]);
        assert_eq!(patterns("1x9", 3), patterns("1", 3));
        assert_eq!(patterns("2x9", 3), patterns("1", 3));
        assert_eq!(patterns("every-step", 3), [[0, 1, 2]]);
        assert_eq!(patterns("2x2+", 3), [vec![0, 2], vec![1]]);
    }

    /// Every admissible set of steps is contained in a listed pattern, and every listed pattern is
    /// admissible.
    #[test]
    fn separated_patterns_cover_every_admissible_set() {
        for (count, gap, horizon) in
            [(3, 2, 8), (2, 3, 7), (8, 3, 9), (4, 1, 6), (9, 2, 5), (9, 1, 4), (2, 4, 5)]
        {
            let admissible = |steps: &[usize]| {
                steps.len() <= count && steps.windows(2).all(|pair| pair[1] - pair[0] >= gap)
            };
            let listed = patterns(&format!("{count}x{gap}+"), horizon);
            assert!(listed.iter().all(|pattern| admissible(pattern)));
            let listed: Vec<BTreeSet<_>> =
                listed.into_iter().map(|pattern| pattern.into_iter().collect()).collect();
            for mask in 0_u32..1 << horizon {
                let steps: Vec<_> = (0..horizon).filter(|step| mask >> step & 1 == 1).collect();
                let covered = || listed.iter().any(|set| steps.iter().all(|step| set.contains(step)));
                assert!(!admissible(&steps) || covered(), "{steps:?}");
            }
        }
    }

    #[test]
    fn too_many_patterns_are_not_listed() {
        let schedule = schedule("9x2+", 60);
        assert_eq!(schedule.patterns(schedule.first_steps(), 1000), None);
    }
}
