//! Totals over keys: sums of what was released of each, with the noise of all of them.
//!
//! They are post-processing and cost no privacy. The noise of the keys is independent and equally large, so that of n keys has √n times the
//! standard deviation of one, exactly. With the method `pp` second moments are squares of each key's sums: the sum of squares is
//! not the square of the sum, so there are no totals of them.

use hushflow_mechanism::estimate::debias::MomentNoise;
use hushflow_mechanism::mechanism::Method;
use hushflow_mechanism::view::Moments;

use crate::publication::MomentPublication;

/// Whether sums over keys mean something: by the method `pp` they don't.
pub fn add_up(publication: &MomentPublication) -> bool {
    publication.parameters().release.method != Method::Pp
}

/// What a view shows of each epoch: every key, or their total.
pub struct Totals {
    keys: u32,
    wanted: bool,
    sum: Option<Moments>,
}

impl Totals {
    /// Over all keys of a publication, if they are `wanted`: else every key is shown.
    pub fn of(publication: &MomentPublication, wanted: bool) -> Self {
        Totals { keys: publication.keys(), wanted, sum: None }
    }

    /// Takes the moments of the next key. Gives them, or else the total after the last key of an epoch: its key is the number
    /// after theirs, which is called [`all`](MomentPublication::key_name).
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
