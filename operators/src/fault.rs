//! A flag that stops a run: raised by a source or operator that cannot continue, watched by the
//! loop that steps the worker.

use std::fmt::Display;
use std::sync::{Arc, OnceLock};

/// A shared flag with the first reason for which it was raised.
///
/// A failing source or operator must keep its capabilities, because dropping one looks like the end
/// of the stream. It raises the fault instead, and the process ends at once.
#[derive(Clone, Default)]
pub struct Fault(Arc<OnceLock<String>>);

impl Fault {
    /// Returns a fault that is not raised.
    pub fn new() -> Self {
        Self::default()
    }

    /// Raises the fault. The first reason is kept. It must hold no private data.
    pub fn raise(&self, reason: impl Display) {
        let _ = self.0.set(reason.to_string());
    }

    /// Returns the reason if it was raised.
    pub fn reason(&self) -> Option<&str> {
        self.0.get().map(String::as_str)
    }

    /// Whether it was raised.
    pub fn is_raised(&self) -> bool {
        self.reason().is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_reason_stays() {
        let fault = Fault::new();
        let watcher = fault.clone();
        assert!(!watcher.is_raised());
        fault.raise("the disk is full");
        fault.raise("something that follows from it");
        assert_eq!(watcher.reason(), Some("the disk is full"));
    }
}
