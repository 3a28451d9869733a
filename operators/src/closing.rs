//! Decides when epochs close, for operators that answer for every epoch with or without records.

use timely::progress::frontier::MutableAntichain;

/// How far an operator may go now.
pub(crate) struct Closing {
    /// Epochs before this one are closed.
    pub(crate) limit: u64,
    /// The epoch after the last one, once it is known; else `u64::MAX`.
    end: u64,
    /// Whether the input and `ends` are both closed.
    ended: bool,
    /// Whether both are closed and `ends` never gave a last epoch.
    unsaid: bool,
}

/// Fault of a source that closes without giving a last epoch.
pub(crate) const NO_END: &str = "the input has closed, and nothing came through `ends`: a source says which epoch is the last, lest an \
                                 end be mistaken for a loss";

impl Closing {
    /// Derives the limit at the epoch `held` from the frontiers of the input and of `ends`. An
    /// input that ends without a last epoch closes nothing: that is a fault of its source
    /// ([`check`](Self::check)). Once `ends` is closed with a last epoch, the operator stops there
    /// even if its input never ends, as in a loop that contains it.
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

    /// Returns an error if the stream ended without a last epoch.
    pub(crate) fn check(&self) -> Result<(), &'static str> {
        if self.unsaid { Err(NO_END) } else { Ok(()) }
    }

    /// Whether an operator at the epoch `held` has finished.
    pub(crate) fn is_over(&self, held: u64) -> bool {
        self.ended || held >= self.end
    }
}
