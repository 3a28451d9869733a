//! The names of discovered keys, as they appear in a log.

use std::cell::Cell;
use std::path::Path;
use std::rc::Rc;

use hushflow_mechanism::discovery::names_of;

use super::{FollowError, open_log};
use crate::pipeline::KeyDiscovery;
use crate::publication::Publication;

/// The slots that have a key, up to some epoch.
pub(super) struct FoundKeys {
    discovery: KeyDiscovery,
    /// Values of all slots in a release. The names of new keys follow them.
    width: usize,
    /// Number of slots with a key.
    pub(super) number: Rc<Cell<u32>>,
}

impl FoundKeys {
    /// No key yet; `None` if the keys of the log are listed.
    pub(super) fn of(publication: &Publication) -> Option<Self> {
        let Publication::Moments(publication) = publication else { return None };
        let discovery = publication.parameters().discovery()?.clone();
        let width = publication.keys() as usize * publication.layout().coordinates();
        Some(FoundKeys { discovery, width, number: Rc::default() })
    }

    /// Takes the names of new keys off the values of the next epoch.
    pub(super) fn read(&self, values: &mut Vec<i128>) -> Result<(), String> {
        let names = values.get(self.width..).and_then(names_of).ok_or("it has no list of new keys")?;
        values.truncate(self.width);
        for name in names {
            let slot = self.number.get();
            self.discovery.slots.set(self.discovery.most, slot, name);
            self.number.set(slot + 1);
        }
        if self.number.get() > self.discovery.most {
            Err("it has more keys than slots".into())
        } else {
            Ok(())
        }
    }
}

/// Reads the names of discovered keys in the log in `directory` so far, for
/// [`key_name`](crate::pipeline::PublicParameters::key_name). Does nothing if keys are listed.
///
/// # Errors
/// [`FollowError`] if the log can't be read.
pub fn read_names(directory: &Path, publication: &Publication) -> Result<(), FollowError> {
    let Some(found) = FoundKeys::of(publication) else { return Ok(()) };
    let Some(mut log) = open_log(directory)? else { return Ok(()) };
    while let Some(mut frame) = log.next_frame()? {
        let epoch = frame.epoch;
        found.read(&mut frame.values).map_err(|problem| FollowError::Release { epoch, problem })?;
    }
    Ok(())
}
