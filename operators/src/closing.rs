//! When epochs close: for operators that answer for every epoch, whether it had records or not.

use timely::progress::frontier::MutableAntichain;

/// How far an operator may go now.
pub(crate) struct Closing {
    /// Epochs before this one are closed.
    pub(crate) limit: u64,
    /// The epoch after the last one, once it is known.
    end: u64,
    /// Whether nothing more comes.
    ended: bool,
    /// Whether nothing more comes and nobody has said where the stream ends.
    unsaid: bool,
}

/// What is wrong with a source that closes without a word.
pub(crate) const NO_END: &str = "the input has closed, and nothing came through `ends`: a source says which epoch is the last, lest an \
                                 end be mistaken for a loss";

impl Closing {
    /// By the frontiers of what comes and of the stream that says where it `ends`, at the epoch `held`. An input that ends without having said
    /// where closes nothing: that is a fault of its source ([`check`](Self::check)). Once it is said, the operator ends there even if its input never
    /// does, as in a loop that it is a part of.
    pub(crate) fn of(
        input: &MutableAntichain<u64>,
        ends: &MutableAntichain<u64>,
        last_epoch: Option<u64>,
        held: u64,
    ) -> Self {
        let said = ends.is_empty();
        let ended = said && input.is_empty();
        let next = input.frontier().first().copied();
        let limit = next.unwrap_or(if ended { last_epoch.map_or(held, |last| last + 1) } else { held });
        let end = last_epoch.filter(|&last| said && last > 0).map_or(u64::MAX, |last| last + 1);
        Self { limit: limit.min(end), end, ended, unsaid: ended && last_epoch.is_none() }
    }

    /// Whether the source has said where it ends, if it has ended.
    pub(crate) fn check(&self) -> Result<(), &'static str> {
        if self.unsaid { Err(NO_END) } else { Ok(()) }
    }

    /// Whether an operator that stands at the epoch `held` has nothing more to do.
    pub(crate) fn is_over(&self, held: u64) -> bool {
        self.ended || held >= self.end
    }
}
