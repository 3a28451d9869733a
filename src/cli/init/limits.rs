//! Limits of entities that fit the files. `init` proposes them, and prints them if other limits
//! would stop the run.
//!
//! A run with `preflight = "stop"` stops if most records are beyond the limits. This depends on the
//! order of the records too, so each proposal is tried on the files.

use hushflow::check::EntitySpread;
use hushflow::operators::{EntityLimits, RepeatPolicy};
use hushflow::pipeline::Pipeline;
use hushflow::runtime::{DryRun, DryRunLimits, dry_run};

use super::super::CliError;
use super::super::output::RowProgress;
use super::super::plan::last_noise;

/// Maximum number of records per epoch that is proposed: noise is proportional to it.
const MAX_RECORDS: u64 = 20;

/// Fewer participations than all are proposed only if they reduce the noise to this share or less.
const MAX_NOISE_RATIO: f64 = 0.9;

/// Limits that were proposed.
#[derive(Clone, Copy)]
pub(super) struct ProposedLimits {
    pub(super) repeat_policy: RepeatPolicy,
    pub(super) records: u64,
    pub(super) participations: u64,
}

/// Searches limits by the number of records within them. Private.
pub(super) struct LimitSearch {
    pipeline: Pipeline,
    spread: EntitySpread,
}

impl LimitSearch {
    /// Counts the records of entities, if the pipeline has some.
    pub(super) fn of(pipeline: Pipeline) -> Option<Self> {
        pipeline.entity.as_ref()?;
        let spread = read(&pipeline, &DryRunLimits { spread: true, ..DryRunLimits::default() }).spread?;
        Some(LimitSearch { pipeline, spread })
    }

    /// Proposes a treatment of several records. They are averaged if more than [`MAX_RECORDS`]
    /// would have to count, or if a run would stop even then.
    pub(super) fn repeat_policy(&self) -> RepeatPolicy {
        let records = self.spread.sufficient_records(RepeatPolicy::Keep);
        let widest = ProposedLimits {
            repeat_policy: RepeatPolicy::Keep,
            records,
            participations: self.pipeline.epochs.schedule.horizon(),
        };
        match records <= MAX_RECORDS && !self.would_stop(widest) {
            true => RepeatPolicy::Keep,
            false => RepeatPolicy::Average,
        }
    }

    /// Proposes the maximum number of records of an entity in an epoch, or of means.
    pub(super) fn records(&self, repeat_policy: RepeatPolicy) -> u64 {
        self.spread.sufficient_records(repeat_policy).min(MAX_RECORDS)
    }

    /// Proposes the maximum number of epochs in which an entity counts: the number that most rows
    /// need, or all epochs if a run with fewer would stop.
    pub(super) fn participations(&self, repeat_policy: RepeatPolicy, records: u64) -> u64 {
        let horizon = self.pipeline.epochs.schedule.horizon();
        let participations = self.spread.sufficient_participations(repeat_policy, records);
        let limits = ProposedLimits { repeat_policy, records, participations };
        match participations < horizon && !self.would_stop(limits) {
            true => participations,
            false => horizon,
        }
    }

    /// Proposes the limits that are not given.
    pub(super) fn proposed(
        &self,
        repeat_policy: Option<RepeatPolicy>,
        records: Option<u64>,
        participations: Option<u64>,
    ) -> ProposedLimits {
        let repeat_policy = repeat_policy.unwrap_or_else(|| match records {
            Some(_) => RepeatPolicy::Keep,
            None => self.repeat_policy(),
        });
        let records = records.unwrap_or_else(|| self.records(repeat_policy));
        let participations = participations.unwrap_or_else(|| self.participations(repeat_policy, records));
        ProposedLimits { repeat_policy, records, participations }
    }

    /// Whether limits would stop a run.
    pub(super) fn would_stop(&self, limits: ProposedLimits) -> bool {
        stops_at_limits(&read(&self.with(limits), &DryRunLimits::default()))
    }

    /// Returns the pipeline with other limits.
    fn with(&self, limits: ProposedLimits) -> Pipeline {
        let ProposedLimits { repeat_policy, records, participations } = limits;
        let mut pipeline = self.pipeline.clone();
        if let Some(entity) = &mut pipeline.entity {
            let records_per_epoch = u32::try_from(records).unwrap_or(u32::MAX);
            entity.limits =
                EntityLimits { participations, records_per_epoch, repeat_policy, ..entity.limits };
        }
        pipeline
    }

    /// States the noise that all epochs cost, and whether fewer would suffice. `None` if entities
    /// may not count in all epochs.
    pub(super) fn cost_of_all_epochs(&self) -> Result<Option<String>, CliError> {
        let horizon = self.pipeline.epochs.schedule.horizon();
        let Some(entity) = &self.pipeline.entity else { return Ok(None) };
        let EntityLimits { participations, records_per_epoch, repeat_policy, .. } = entity.limits;
        if horizon == 1 || participations < horizon {
            return Ok(None);
        }
        let records = u64::from(records_per_epoch);
        let noise = |participations| {
            last_noise(&self.with(ProposedLimits { repeat_policy, records, participations }))
        };
        let one = noise(1)?;
        let sufficient = self.participations(repeat_policy, records);
        let (all, fewer) = (noise(horizon)?, noise(sufficient)?);
        let advice = match fewer <= MAX_NOISE_RATIO * all {
            true => format!(
                "--participations {sufficient} would keep nine tenths of the rows that count, and the noise would be {} times that of 1",
                times(fewer / one)
            ),
            false => {
                "with clearly fewer, more than a tenth of the rows that count would be left out, or a run would stop"
                    .into()
            }
        };
        Ok(Some(format!(
            "each {:?} may count in all {horizon} epochs (--participations {horizon}). That takes {} times the noise that would do if \
             each counted in only one of them (--participations 1). PRIVATE: {advice}",
            entity.column,
            times(all / one)
        )))
    }

    /// Proposes flags if the limits of the pipeline would stop a run.
    pub(super) fn remedy(&self) -> String {
        let limits = self.proposed(None, None, None);
        let flags = flags(limits);
        let warn = "preflight = \"warn\" in [source] would publish the records within the limits";
        if self.would_stop(limits) {
            return format!("No limits keep most of the records: lengthen epochs. {warn}.");
        }
        match limits.repeat_policy {
            RepeatPolicy::Keep => format!("These flags would pass; PRIVATE: {flags}\nOr {warn}."),
            RepeatPolicy::Average => format!(
                "Most records are of entities with more than {MAX_RECORDS} in an epoch, and noise is proportional to the number that \
                 counts.\nThese flags would pass; PRIVATE: {flags}\nThen the records of an entity with the same key and epoch become one \
                 record, their mean, and no entity weighs more than another. Or {warn}."
            ),
        }
    }
}

/// Formats a factor.
fn times(factor: f64) -> String {
    format!("{factor:.1}")
}

/// Formats limits as flags.
fn flags(limits: ProposedLimits) -> String {
    let ProposedLimits { repeat_policy, records, participations } = limits;
    let repeat_policy = match repeat_policy {
        RepeatPolicy::Keep => "",
        RepeatPolicy::Average => "--several average ",
    };
    format!("{repeat_policy}--records-per-epoch {records} --participations {participations}")
}

/// Whether a run would stop because its limits leave out most records.
pub(super) fn stops_at_limits(run: &DryRun) -> bool {
    run.problems.iter().any(|problem| problem.stops && problem.kind == "entity limits")
}

/// Reads the files as a run would.
pub(super) fn read(pipeline: &Pipeline, limits: &DryRunLimits) -> DryRun {
    let progress = RowProgress::new();
    let run = dry_run(pipeline, limits, &mut |rows| progress.update(rows));
    progress.finish();
    run
}
