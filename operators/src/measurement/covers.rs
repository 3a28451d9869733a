//! Whether a mechanism has the noise for the limits of entities.

use crate::EntityLimits;
use hushflow_mechanism::discovery::{Counted, Discovery};
use hushflow_mechanism::mechanism::MatrixMechanism;
use hushflow_mechanism::participation::Participation;

/// Whether the sensitivity and the noise account for entities of these limits. Where keys are
/// discovered, the records of all epochs may come at once.
pub(super) fn covers(
    mechanism: &MatrixMechanism,
    limits: EntityLimits,
    discovery: Option<&Discovery>,
) -> bool {
    let epochs = limits.most_participations(mechanism.horizon());
    if let Some(discovery) = discovery {
        let most = epochs.saturating_mul(limits.records_per_epoch.into());
        let most_records = match discovery.parameters().counted {
            Counted::Records => 0,
            Counted::Entities { records } => records.min(mechanism.records_at_once()),
        };
        return most <= most_records.into();
    }
    let participates = match mechanism.participation() {
        Participation::MinSeparation { count, gap } => {
            epochs <= count.get() && limits.min_separation >= gap.get()
        }
        _ => false,
    };
    (epochs <= 1 || participates) && limits.records_per_epoch <= mechanism.records_at_once()
}
