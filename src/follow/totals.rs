//! Totals over keys: sums of each key's releases, with their combined noise.
//!
//! Totals are post-processing and cost no privacy. The noise of the keys is independent and equally
//! large, so the total of n keys has exactly √n times the standard deviation of one. For the method
//! `pp` second moments are squares of each key's sums. A sum of squares is not the square of the
//! sum, so there are no totals.

use hushflow_mechanism::estimate::debias::MomentNoise;
use hushflow_mechanism::mechanism::Method;
use hushflow_mechanism::view::Moments;

use crate::publication::MomentPublication;

/// Whether sums over keys are meaningful: not for the method `pp`.
pub fn add_up(publication: &MomentPublication) -> bool {
    publication.parameters().release.method != Method::Pp
}

/// Shows every key of an epoch, or only their total.
pub struct Totals {
    keys: u32,
    wanted: bool,
    sum: Option<Moments>,
}

impl Totals {
    /// Shows the total if it is `wanted`, else every key.
    pub fn of(publication: &MomentPublication, wanted: bool) -> Self {
        Totals { keys: publication.keys(), wanted, sum: None }
    }

    /// Takes the moments of the next key. Returns them, or only the total after the last key of an
    /// epoch. The total's key is the number of keys, called [`all`](MomentPublication::key_name).
    pub fn push(&mut self, moments: Moments) -> Option<Moments> {
        if !self.wanted {
            return Some(moments);
        }
        let last = moments.key + 1 == self.keys;
        match &mut self.sum {
            None => self.sum = Some(moments),
            Some(sum) => {
                let parts = sum.coordinates.iter_mut().zip(&moments.coordinates);
                parts.for_each(|(sum, part)| *sum += part);
            }
        }
        let mut total = self.sum.take_if(|_| last)?;
        let root = f64::from(self.keys).sqrt();
        let MomentNoise { count, first, second } = &mut total.noise;
        [count, first, second].into_iter().for_each(|deviation| *deviation *= root);
        Some(Moments { key: self.keys, ..total })
    }
}
