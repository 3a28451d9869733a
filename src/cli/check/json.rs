//! The report of `hushflow check` for programs.

use hushflow::check::histogram_surveys;
use hushflow::time::time_text;
use serde_json::{Value, json};

use super::super::PRIVATE;
use super::report::CheckReport;

impl CheckReport<'_> {
    /// Returns the report as JSON.
    pub(super) fn json(&self) -> Value {
        let seen = self.run;
        let outcomes: serde_json::Map<_, _> =
            self.outcomes().into_iter().map(|(name, _, count)| (name.to_owned(), count.into())).collect();
        let columns: Vec<_> = self
            .columns()
            .map(|(survey, column)| {
                json!({
                    "name": column.name, "lower": column.lower, "upper": column.upper, "below": survey.values.below.values,
                    "above": survey.values.above.values,
                    "least": survey.values.range.map(|range| range.0), "greatest": survey.values.range.map(|range| range.1),
                    "missing": survey.missing, "malformed": survey.malformed,
                })
            })
            .collect();
        let histograms: Vec<_> = histogram_surveys(self.pipeline, &seen.survey)
            .map(|(histogram, survey)| {
                let bins = survey.bins;
                json!({
                    "column": histogram.column, "with_bin": bins.with, "without_bin": bins.without, "missing": bins.missing,
                })
            })
            .collect();
        let keys: Vec<_> = self
            .key_names()
            .into_iter()
            .zip(seen.tally.by_key())
            .map(|(key, records)| json!({"key": key, "records": records}))
            .collect();
        let unlisted: Vec<_> =
            self.unlisted().into_iter().map(|(key, rows)| json!({"key": key, "rows": rows})).collect();
        let names = self.key_names();
        let epochs: Vec<_> = seen
            .tally
            .epochs
            .iter()
            .map(|(&epoch, counts)| {
                let counts: serde_json::Map<_, _> = names
                    .iter()
                    .zip(counts)
                    .map(|(name, &count)| ((*name).to_owned(), count.into()))
                    .collect();
                let mut line = json!({"epoch": epoch, "from": self.epoch_name(epoch), "records": counts});
                if self.pipeline.entity.is_some() {
                    line["within_limits"] = json!(seen.counting_by_epoch.get(&epoch).copied().unwrap_or(0));
                }
                line
            })
            .collect();
        let steps: Vec<_> = seen
            .survey
            .steps
            .iter()
            .map(|step| json!({"from": time_text(step.from), "to": time_text(step.to), "line": step.line}))
            .collect();
        let range =
            |range: Option<(i64, i64)>| range.map(|(first, last)| [time_text(first), time_text(last)]);
        let mut report = json!({
            "private": true,
            "warning": PRIVATE,
            "pipeline": self.pipeline.name,
            "rows": seen.counters.rows,
            "is_whole": self.run.is_whole,
            "outcomes": outcomes,
            "left_out_by_entity_limits": self.run.left_out,
            "counting_within_entity_limits": self.run.counting,
            "columns": columns,
            "histograms": histograms,
            "keys": keys,
            "unlisted_keys": unlisted,
            "event_times": range(seen.survey.events.range),
            "clock": range(seen.survey.clocks.range),
            "largest_steps": steps,
            "backward_steps": seen.survey.backward_steps,
            "early_events": seen.survey.early_events,
            "longest_uncounted_stretch": {
                "before": seen.survey.stretches.uncounted.before,
                "rows": seen.survey.stretches.uncounted.counters.rows,
            },
            "epochs_published": self.published,
            "horizon": self.pipeline.epochs.schedule.horizon(),
            "epochs": epochs,
            "release": self.release,
            "notes": self.notes(),
            "problems": self.problems,
            "fault": self.run.fault.as_ref().map(ToString::to_string),
        });
        if let Some(discovered) = &self.discovered {
            report["discovered"] = json!(discovered);
        }
        report
    }
}
