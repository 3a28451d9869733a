//! From what is found on disk to what is done about it: a pure function, and the facts it judges.
//!
//! The rule: whatever may have been seen stands. A torn tail was never seen and is cut. A public log that is
//! behind is continued from the private one. Anything that points to an epoch the private log no longer holds, or
//! to two histories, is refused: drawing that epoch's noise again would publish two noisy copies of it.

use super::{
    checkpoint::Slot,
    error::StateError,
    private_log::{PrivateFacts, Tail},
    public_log::{PublicFacts, Rest},
    storage::{CHECKPOINTS, PRIVATE_LOG, PUBLIC_LOG},
};
use std::path::Path;

/// What was found in a state directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Facts {
    pub(super) private: PrivateFacts,
    pub(super) public: PublicFacts,
    pub(super) checkpoints: [Slot; 2],
}

/// What a start does with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Plan {
    /// Bytes of the private log that stay; 0: begin a new one.
    pub(super) keep_private: u64,
    /// From here on the kept bytes are written once more before the sync.
    pub(super) rewrite_from: u64,
    /// Bytes of the public log that stay; 0: begin a new one.
    pub(super) keep_public: u64,
    /// The generation of the run that starts.
    pub(super) generation: u64,
    /// Where the newest checkpoint stands.
    pub(super) checkpoint: Option<usize>,
}

/// The plan for `facts` about `directory`, opened with the header whose payload is `header`; or why there is none.
pub(super) fn decide(directory: &Path, facts: &Facts, header: &[u8]) -> Result<Plan, StateError> {
    let Facts { private, public, .. } = facts;
    if private.tail == Tail::Damaged {
        let what = "a frame fails its checksum, and later frames show that it had been synced";
        return Err(StateError::Damaged { path: directory.join(PRIVATE_LOG), offset: private.end, what });
    }
    let Some(stored) = &private.header else {
        nothing_was_made(directory, facts)?;
        return Ok(Plan {
            keep_private: 0,
            rewrite_from: 0,
            keep_public: 0,
            generation: 1,
            checkpoint: None,
        });
    };
    if stored != header {
        return Err(StateError::HeaderDiffers { path: directory.join(PRIVATE_LOG) });
    }
    public_is_no_further(directory, facts)?;
    checkpoints_are_of_this_log(directory, facts)?;
    Ok(Plan {
        keep_private: private.end,
        rewrite_from: private.unproven,
        keep_public: public.matched,
        generation: private.generation + 1,
        checkpoint: newest_checkpoint(&facts.checkpoints),
    })
}

/// The place of the newest intact checkpoint.
pub(super) fn newest_checkpoint(slots: &[Slot; 2]) -> Option<usize> {
    let epoch = |place: &usize| match slots[*place] {
        Slot::Intact { epoch, .. } => Some(epoch),
        _ => None,
    };
    (0..slots.len()).filter(|place| epoch(place).is_some()).max_by_key(epoch)
}

/// Without a private log there must be nothing that was made from one.
fn nothing_was_made(directory: &Path, facts: &Facts) -> Result<(), StateError> {
    let public = matches!(facts.public.rest, Rest::Ahead { .. }).then_some(PUBLIC_LOG);
    let checkpoint = newest_checkpoint(&facts.checkpoints).map(|place| CHECKPOINTS[place]);
    match public.or(checkpoint) {
        None => Ok(()),
        Some(witness) => Err(StateError::PrivateLogLost {
            path: directory.join(PRIVATE_LOG),
            witness: directory.join(witness),
        }),
    }
}

fn public_is_no_further(directory: &Path, facts: &Facts) -> Result<(), StateError> {
    match facts.public.rest {
        Rest::Nothing | Rest::Partial | Rest::Unreadable => Ok(()),
        Rest::Ahead { epoch } => Err(rolled_back(directory, facts, PUBLIC_LOG, epoch)),
        Rest::Differs { offset, epoch } => {
            Err(StateError::Conflict { path: directory.join(PUBLIC_LOG), offset, epoch })
        }
    }
}

fn checkpoints_are_of_this_log(directory: &Path, facts: &Facts) -> Result<(), StateError> {
    for (slot, name) in facts.checkpoints.iter().zip(CHECKPOINTS) {
        match *slot {
            Slot::Intact { epoch, .. } if epoch > facts.private.epoch => {
                return Err(rolled_back(directory, facts, name, epoch));
            }
            Slot::Intact { epoch, genuine: false, .. } => {
                return Err(StateError::ForeignCheckpoint { path: directory.join(name), epoch });
            }
            _ => {}
        }
    }
    Ok(())
}

fn rolled_back(directory: &Path, facts: &Facts, witness: &str, witnessed: u64) -> StateError {
    StateError::RolledBack {
        path: directory.join(PRIVATE_LOG),
        offset: facts.private.end,
        committed: facts.private.epoch,
        witness: directory.join(witness),
        witnessed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: &[u8] = b"header";

    /// Every kind of private log: none, or one at epoch 0, 1 or 2, each with every tail.
    fn private_logs() -> impl Iterator<Item = PrivateFacts> {
        let tails = [Tail::Clean, Tail::Torn, Tail::Damaged];
        let log = |header: Option<&[u8]>, epoch: u64, tail| PrivateFacts {
            header: header.map(<[u8]>::to_vec),
            length: 100 * (epoch + 1) + if tail == Tail::Clean { 0 } else { 50 },
            end: if header.is_some() { 100 * (epoch + 1) } else { 0 },
            unproven: 100 * epoch,
            generation: 3 * epoch,
            epoch,
            tail,
        };
        let made = move |epoch| tails.map(|tail| log(Some(HEADER), epoch, tail));
        (0..3).flat_map(made).chain(tails.map(|tail| log(None, 0, tail)))
    }

    fn public_logs() -> impl Iterator<Item = PublicFacts> {
        let rests = [Rest::Nothing, Rest::Partial, Rest::Unreadable]
            .into_iter()
            .chain((0..3).map(|epoch| Rest::Differs { offset: 16, epoch }))
            .chain((0..4).map(|epoch| Rest::Ahead { epoch }));
        rests.flat_map(|rest| {
            (0..3).map(move |epoch| PublicFacts { length: 500, matched: 40 * epoch, epoch, rest })
        })
    }

    fn slots() -> impl Iterator<Item = Slot> {
        let intact = |epoch| [true, false].map(|genuine| Slot::Intact { epoch, frame_checksum: 7, genuine });
        [Slot::Absent, Slot::Unreadable].into_iter().chain((1..4).flat_map(intact))
    }

    fn all_facts() -> Vec<Facts> {
        let mut all = Vec::new();
        for private in private_logs() {
            for public in public_logs() {
                for (a, b) in slots().flat_map(|a| slots().map(move |b| (a, b))) {
                    all.push(Facts { private: private.clone(), public: public.clone(), checkpoints: [a, b] });
                }
            }
        }
        all
    }

    fn checkpoint_epochs(facts: &Facts) -> Vec<(u64, bool)> {
        let intact = facts.checkpoints.iter().filter_map(|slot| match *slot {
            Slot::Intact { epoch, genuine, .. } => Some((epoch, genuine)),
            _ => None,
        });
        intact.collect()
    }

    /// The specification in other words: what speaks against a start.
    fn must_refuse(facts: &Facts) -> bool {
        let Facts { private, public, .. } = facts;
        let checkpoints = checkpoint_epochs(facts);
        let ahead = matches!(public.rest, Rest::Ahead { .. });
        match private.header {
            _ if private.tail == Tail::Damaged => true,
            None => ahead || !checkpoints.is_empty(),
            Some(_) => {
                ahead
                    || matches!(public.rest, Rest::Differs { .. })
                    || checkpoints.iter().any(|&(epoch, genuine)| epoch > private.epoch || !genuine)
            }
        }
    }

    #[test]
    fn every_combination_of_facts_is_judged_as_specified() {
        let all = all_facts();
        assert_eq!(all.len(), 12 * 30 * 64);
        for facts in all {
            let decision = decide(Path::new("state"), &facts, HEADER);
            assert_eq!(decision.is_err(), must_refuse(&facts), "{facts:?}");
            let Ok(plan) = decision else { continue };
            let private = &facts.private;
            assert_eq!(plan.generation, private.generation + 1, "{facts:?}");
            assert_eq!(plan.keep_private, private.end, "{facts:?}");
            assert!(plan.rewrite_from <= plan.keep_private, "{facts:?}");
            assert!(plan.keep_public <= facts.public.matched, "{facts:?}");
            let newest = checkpoint_epochs(&facts).into_iter().map(|(epoch, _)| epoch).max();
            let chosen = plan.checkpoint.map(|place| facts.checkpoints[place]);
            assert_eq!(chosen.is_some(), newest.is_some(), "{facts:?}");
            if let Some(Slot::Intact { epoch, .. }) = chosen {
                assert_eq!(Some(epoch), newest, "{facts:?}");
            }
        }
    }

    #[test]
    fn other_parameters_are_refused_and_the_way_out_is_named() {
        for facts in all_facts().iter().filter(|facts| facts.private.header.is_some() && !must_refuse(facts))
        {
            let error = decide(Path::new("state"), facts, b"other").unwrap_err();
            assert!(error.to_string().contains("use another --state directory"), "{error}");
        }
    }
}
