//! Records the process that an object belongs to. A fork of that process would draw the same noise
//! a second time.

use crate::errors::Failure;

/// The process that made an object.
pub(crate) struct Owner(u32);

impl Owner {
    pub(crate) fn this_process() -> Self {
        Owner(std::process::id())
    }

    pub(crate) fn is_this_process(&self) -> bool {
        self.0 == std::process::id()
    }

    /// Raises ForkError in a fork. `what` is the object, as in "the publication".
    pub(crate) fn check(&self, what: &str) -> Result<(), Failure> {
        if self.is_this_process() {
            return Ok(());
        }
        Err(Failure::new(
            "ForkError",
            format!(
                "this process is a fork of the one that opened the {what}, and only that one may use it: \
                 open it after the fork, or start processes by spawn"
            ),
        ))
    }
}
