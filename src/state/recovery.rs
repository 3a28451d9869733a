//! Plans the recovery at a start: a pure function of the facts found on disk.
//!
//! The rule: a release that may have been seen is final. A torn tail was never seen and is cut. A
//! public log that is behind is continued from the private one. A start is refused if anything
//! points to an epoch that the private log does not hold, or to two histories: drawing that epoch's
//! noise again would publish two noisy copies of it.

use super::{
    anchor::AnchorContent,
    chain::LogHead,
    checkpoint::CheckpointSlot,
    difference::difference,
    enrolment::ENROLMENT,
    error::StateError,
    private_log::{LogTail, PrivateFacts},
    public_log::{PublicFacts, PublicTail},
    storage::{CHECKPOINTS, PRIVATE_LOG, segment_name},
};
use std::path::{Path, PathBuf};

/// Contents of a state directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct StateFacts {
    pub(super) private: PrivateFacts,
    pub(super) public: PublicFacts,
    pub(super) checkpoints: [CheckpointSlot; 2],
    /// Path of the public log, for messages.
    pub(super) public_log: PathBuf,
    /// Whether the enrolment says that something may have been released.
    pub(super) begun: bool,
    /// Content of the anchor, if there is one.
    pub(super) anchored: Option<AnchorContent>,
}

/// Actions of a start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RecoveryPlan {
    /// Bytes to keep of the private log's last segment; 0: begin a new log.
    pub(super) keep_private: u64,
    /// Offset from which the kept bytes are written once more before the sync.
    pub(super) rewrite_from: u64,
    /// Bytes to keep of the public log; 0: begin a new one.
    pub(super) keep_public: u64,
    /// The generation of the starting run.
    pub(super) generation: u64,
    /// Index of the newest checkpoint.
    pub(super) checkpoint: Option<usize>,
}

/// Returns the plan for `facts` about `directory`, opened with the header whose payload is
/// `header`, or the reason to refuse.
pub(super) fn decide(
    directory: &Path,
    facts: &StateFacts,
    header: &[u8],
) -> Result<RecoveryPlan, StateError> {
    let StateFacts { private, public, .. } = facts;
    if private.tail == LogTail::Damaged {
        let damage = "a frame fails its checksum, and what follows shows that it had been synced";
        return Err(StateError::Damaged {
            path: last_segment(directory, facts),
            offset: private.end,
            damage,
        });
    }
    let Some(stored) = &private.header else {
        check_no_derived_files(directory, facts)?;
        anchor_agrees(directory, facts)?;
        return Ok(RecoveryPlan {
            keep_private: 0,
            rewrite_from: 0,
            keep_public: 0,
            generation: 1,
            checkpoint: None,
        });
    };
    if stored != header {
        let path = last_segment(directory, facts);
        return Err(StateError::HeaderDiffers { path, difference: difference(stored, header) });
    }
    check_public_not_ahead(directory, facts)?;
    checkpoints_are_of_this_log(directory, facts)?;
    anchor_agrees(directory, facts)?;
    Ok(RecoveryPlan {
        keep_private: private.end,
        rewrite_from: private.unproven,
        keep_public: public.matched,
        generation: private.head.generation + 1,
        checkpoint: newest_checkpoint(&facts.checkpoints),
    })
}

/// Returns the index of the newest intact checkpoint.
pub(super) fn newest_checkpoint(slots: &[CheckpointSlot; 2]) -> Option<usize> {
    let epoch = |slot: &usize| match slots[*slot] {
        CheckpointSlot::Intact { epoch, .. } => Some(epoch),
        _ => None,
    };
    (0..slots.len()).filter(|slot| epoch(slot).is_some()).max_by_key(epoch)
}

/// Refuses files derived from a private log that is missing.
fn check_no_derived_files(directory: &Path, facts: &StateFacts) -> Result<(), StateError> {
    let public = matches!(facts.public.rest, PublicTail::Ahead { .. }).then(|| facts.public_log.clone());
    let checkpoint = newest_checkpoint(&facts.checkpoints).map(|slot| directory.join(CHECKPOINTS[slot]));
    let enrolment = facts.begun.then(|| directory.join(ENROLMENT.name));
    match public.or(checkpoint).or(enrolment) {
        None => Ok(()),
        Some(witness) => Err(StateError::PrivateLogLost { path: directory.join(PRIVATE_LOG), witness }),
    }
}

fn check_public_not_ahead(directory: &Path, facts: &StateFacts) -> Result<(), StateError> {
    match facts.public.rest {
        PublicTail::Nothing | PublicTail::Partial | PublicTail::Unreadable => Ok(()),
        PublicTail::Lost { offset } => {
            let damage =
                "a release is missing or fails its checksum, and the private log no longer begins so early";
            Err(StateError::Damaged { path: facts.public_log.clone(), offset, damage })
        }
        PublicTail::Ahead { epoch } => Err(rolled_back(directory, facts, &facts.public_log, epoch)),
        PublicTail::Differs { offset, epoch } => {
            Err(StateError::Conflict { path: facts.public_log.clone(), offset, epoch })
        }
    }
}

/// Checks checkpoints against the log. One from before the log's start can't be checked and is not
/// used.
fn checkpoints_are_of_this_log(directory: &Path, facts: &StateFacts) -> Result<(), StateError> {
    let base = facts.private.base();
    let mut found = base == 0;
    for (slot, name) in facts.checkpoints.iter().zip(CHECKPOINTS) {
        match *slot {
            CheckpointSlot::Intact { epoch, .. } if epoch < base => {}
            CheckpointSlot::Intact { epoch, .. } if epoch > facts.private.head.epoch => {
                return Err(rolled_back(directory, facts, &directory.join(name), epoch));
            }
            CheckpointSlot::Intact { genuine: true, .. } => found = true,
            CheckpointSlot::Intact { epoch, genuine: false, .. } => {
                return Err(StateError::ForeignCheckpoint { path: directory.join(name), epoch });
            }
            CheckpointSlot::Absent | CheckpointSlot::Unreadable { .. } => {}
        }
    }
    let first = facts.private.segments.first().map_or(1, |segment| segment.number);
    let lost = || StateError::CheckpointLost { path: directory.join(segment_name(first)), epoch: base };
    found.then_some(()).ok_or_else(lost)
}

/// Refuses a log that is behind its anchor or has another link there.
fn anchor_agrees(directory: &Path, facts: &StateFacts) -> Result<(), StateError> {
    let Some(AnchorContent { path, head, agrees }) = &facts.anchored else { return Ok(()) };
    let (LogHead { generation, epoch, .. }, anchor) = (facts.private.head, path.clone());
    if generation < head.generation || epoch < head.epoch {
        return Err(StateError::BehindAnchor {
            path: directory.to_owned(),
            anchor,
            generation,
            epoch,
            anchored_generation: head.generation,
            anchored_epoch: head.epoch,
        });
    }
    let forked = || StateError::ForkedFromAnchor { path: directory.to_owned(), anchor, epoch: head.epoch };
    agrees.then_some(()).ok_or_else(forked)
}

fn last_segment(directory: &Path, facts: &StateFacts) -> PathBuf {
    directory.join(segment_name(facts.private.end().segment))
}

fn rolled_back(directory: &Path, facts: &StateFacts, witness: &Path, witnessed: u64) -> StateError {
    StateError::RolledBack {
        path: last_segment(directory, facts),
        offset: facts.private.end,
        committed: facts.private.head.epoch,
        witness: witness.to_owned(),
        witnessed,
    }
}

#[cfg(test)]
mod tests {
    use super::super::{chain::ChainLink, private_log::LogSegment};
    use super::*;

    const HEADER: &[u8] = b"header";

    /// Private logs of every kind: missing, or at epoch 0, 1 or 2, complete or begun after epoch 1,
    /// each with every tail.
    fn private_logs() -> impl Iterator<Item = PrivateFacts> {
        let tails = [LogTail::Clean, LogTail::Torn, LogTail::Damaged];
        let log = |header: Option<&[u8]>, base: u64, epoch: u64, tail| PrivateFacts {
            header: header.map(<[u8]>::to_vec),
            segments: header
                .map(|_| LogSegment { number: 1 + base, epoch: base, begun: 0 })
                .into_iter()
                .collect(),
            last: 1 + base,
            length: 100 * (epoch + 1) + if tail == LogTail::Clean { 0 } else { 50 },
            end: if header.is_some() { 100 * (epoch + 1) } else { 0 },
            unproven: 100 * epoch,
            head: LogHead { generation: 3 * epoch, epoch, link: ChainLink::default() },
            tail,
        };
        let made = move |(base, epoch)| tails.map(|tail| log(Some(HEADER), base, epoch, tail));
        let kinds = [(0, 0), (0, 1), (0, 2), (1, 1), (1, 2)];
        kinds.into_iter().flat_map(made).chain(tails.map(|tail| log(None, 0, 0, tail)))
    }

    fn public_logs() -> impl Iterator<Item = PublicFacts> {
        let rests = [
            PublicTail::Nothing,
            PublicTail::Partial,
            PublicTail::Unreadable,
            PublicTail::Lost { offset: 16 },
        ]
        .into_iter()
        .chain((0..3).map(|epoch| PublicTail::Differs { offset: 16, epoch }))
        .chain((0..4).map(|epoch| PublicTail::Ahead { epoch }));
        rests.flat_map(|rest| {
            (0..3).map(move |epoch| PublicFacts { length: 500, matched: 40 * epoch, epoch, rest })
        })
    }

    fn slots() -> impl Iterator<Item = CheckpointSlot> {
        let intact = |epoch| {
            [true, false].map(|genuine| CheckpointSlot::Intact {
                epoch,
                link: ChainLink::default(),
                genuine,
                list: None,
            })
        };
        [CheckpointSlot::Absent, CheckpointSlot::Unreadable { list: None }]
            .into_iter()
            .chain((1..4).flat_map(intact))
    }

    fn anchors() -> impl Iterator<Item = Option<AnchorContent>> {
        let at = |(generation, epoch, agrees)| AnchorContent {
            path: "anchor".into(),
            head: LogHead { generation, epoch, link: ChainLink::default() },
            agrees,
        };
        [None].into_iter().chain([(0, 0, true), (3, 1, true), (3, 1, false), (4, 1, true)].map(at).map(Some))
    }

    fn all_facts() -> Vec<StateFacts> {
        let mut all = Vec::new();
        for private in private_logs() {
            for public in public_logs() {
                for (a, b) in slots().flat_map(|a| slots().map(move |b| (a, b))) {
                    for begun in [false, true] {
                        all.extend(anchors().map(|anchored| StateFacts {
                            private: private.clone(),
                            public: public.clone(),
                            checkpoints: [a, b],
                            begun,
                            public_log: "state/public.log".into(),
                            anchored,
                        }));
                    }
                }
            }
        }
        all
    }

    fn checkpoint_epochs(facts: &StateFacts) -> Vec<(u64, bool)> {
        let intact = facts.checkpoints.iter().filter_map(|slot| match *slot {
            CheckpointSlot::Intact { epoch, genuine, .. } => Some((epoch, genuine)),
            _ => None,
        });
        intact.collect()
    }

    /// The specification, stated independently: reasons to refuse a start.
    fn must_refuse(facts: &StateFacts) -> bool {
        let StateFacts { private, public, .. } = facts;
        let checkpoints = checkpoint_epochs(facts);
        let ahead = matches!(public.rest, PublicTail::Ahead { .. });
        let head = private.head;
        let unanchored = facts.anchored.as_ref().is_some_and(|anchored| {
            head.generation < anchored.head.generation || head.epoch < anchored.head.epoch || !anchored.agrees
        });
        match private.header {
            _ if private.tail == LogTail::Damaged || unanchored => true,
            None => ahead || facts.begun || !checkpoints.is_empty(),
            Some(_) => {
                let judged = || checkpoints.iter().filter(|(epoch, _)| *epoch >= private.base());
                ahead
                    || matches!(public.rest, PublicTail::Differs { .. } | PublicTail::Lost { .. })
                    || judged().any(|&(epoch, genuine)| epoch > private.head.epoch || !genuine)
                    || private.base() > 0 && judged().next().is_none()
            }
        }
    }

    #[test]
    fn every_combination_of_facts_is_judged_as_specified() {
        let all = all_facts();
        assert_eq!(all.len(), 18 * 33 * 64 * 2 * 5);
        for facts in all {
            let decision = decide(Path::new("state"), &facts, HEADER);
            assert_eq!(decision.is_err(), must_refuse(&facts), "{facts:?}");
            let Ok(plan) = decision else { continue };
            let private = &facts.private;
            assert_eq!(plan.generation, private.head.generation + 1, "{facts:?}");
            assert_eq!(plan.keep_private, private.end, "{facts:?}");
            assert!(plan.rewrite_from <= plan.keep_private, "{facts:?}");
            assert!(plan.keep_public <= facts.public.matched, "{facts:?}");
            let newest = checkpoint_epochs(&facts).into_iter().map(|(epoch, _)| epoch).max();
            let chosen = plan.checkpoint.map(|slot| facts.checkpoints[slot]);
            assert_eq!(chosen.is_some(), newest.is_some(), "{facts:?}");
            if let Some(CheckpointSlot::Intact { epoch, .. }) = chosen {
                assert_eq!(Some(epoch), newest, "{facts:?}");
            }
        }
    }

    #[test]
    fn other_parameters_are_refused_and_the_way_out_is_named() {
        for facts in all_facts().iter().filter(|facts| facts.private.header.is_some() && !must_refuse(facts))
        {
            let error = decide(Path::new("state"), facts, b"other").unwrap_err();
            assert!(error.to_string().contains("use another state directory"), "{error}");
        }
    }
}
