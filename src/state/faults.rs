//! Faults of the simulated disk, and the effect of a power cut on unsynced data.

/// A fault at the chosen call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DiskFault {
    /// The power goes: this call and all later ones do nothing.
    Power,
    /// The disk is full: half of a write arrives and other calls are refused. Later calls work.
    Full,
    /// A sync fails and, as on real systems, the bytes are no longer marked unsynced. Later calls
    /// work.
    Sync,
}

/// State of unsynced changes after a power cut.
#[derive(Clone, Copy, Debug)]
pub(super) enum PowerLoss {
    Everything,
    Nothing,
    /// The first half of the changes arrived.
    LaterHalf,
    /// The first half of the changes was lost, later ones arrived.
    EarlierHalf,
    /// Half of the last write arrived.
    Torn,
    /// Lengths arrived, contents are zero.
    Zeros,
    /// Lengths arrived, contents are arbitrary.
    Garbage,
    /// Each change arrived or not, decided by this seed.
    Some(u64),
}

/// Every kind of loss.
pub(super) const LOSSES: [PowerLoss; 10] = [
    PowerLoss::Everything,
    PowerLoss::Nothing,
    PowerLoss::LaterHalf,
    PowerLoss::EarlierHalf,
    PowerLoss::Torn,
    PowerLoss::Zeros,
    PowerLoss::Garbage,
    PowerLoss::Some(1),
    PowerLoss::Some(2),
    PowerLoss::Some(3),
];
