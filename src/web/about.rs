//! Public facts about a log, and the choices that its page offers to a reader.

use hushflow_mechanism::epochs::Schedule;
use hushflow_mechanism::moments::SecondMoment;
use serde_json::{Value, json};

use super::choice::{COMPARED_KEYS, COUNT, offers_total};
use super::{LISTED_KEYS, PageContents, PageHandler, promise};
use crate::estimates::{Band, ChartGroup, ChartSeries, ESTIMATORS};
use crate::http::HttpRequest;

impl PageHandler {
    /// Returns the facts, with the plot of the estimate that a client requests.
    pub(super) fn about(&self, request: &HttpRequest) -> Result<Value, String> {
        let PageContents { publication, key, ledger, .. } = &self.contents;
        let view = self.offer.view(request, &self.contents)?;
        let (estimate, estimator) = self.offer.estimator(request, publication)?;
        let parameters = publication.parameters();
        let (start, length, runs) = match &parameters.epochs.schedule {
            Schedule::ByTime(by) => {
                (Some(by.start), Some(by.length), by.calendar.as_ref().map(|calendar| &calendar.runs))
            }
            Schedule::ByCount(_) => (None, None, None),
        };
        let mut plot = estimator.plot(&publication.scaled_view(&view));
        plot.groups.push(ChartGroup {
            name: COUNT,
            title: "Records".into(),
            series: vec![ChartSeries {
                name: COUNT.into(),
                value: json!(["count"]),
                band: Band::Noise(json!(["count_noise"])),
            }],
        });
        let log = parameters.log_facts();
        plot.matrix &= log.second_moments == SecondMoment::Full && parameters.columns.len() > 1;
        let formula = ESTIMATORS.iter().find(|kind| kind.flag.is_some() && kind.lacks(&log).is_none());
        let components = ESTIMATORS.iter().find(|kind| {
            kind.flag.as_ref().is_some_and(|flag| flag.name == "pca") && kind.lacks(&log).is_none()
        });
        let helps = |name: &str| {
            let kind = name.split(':').next().unwrap_or(name);
            ESTIMATORS.iter().find(|found| found.name == kind).map(|found| found.help)
        };
        let estimates = self.offer.estimators().map(|name| json!({ "name": name, "about": helps(name) }));
        let workloads = self.offer.workloads(&*estimator).into_iter().map(|workload| workload.to_string());
        let names: Vec<_> = self.listed_keys().into_iter().map(|key| publication.key_name(key)).collect();
        Ok(json!({
            "name": parameters.name,
            "private": publication.is_private(),
            "epsilon": parameters.privacy.epsilon,
            "delta": parameters.privacy.delta,
            "neighbours": parameters.privacy.neighbours,
            "protects": promise::unit(parameters),
            "promise": promise::in_plain_words(parameters, publication.is_private()),
            "guarantee": promise::guarantee(parameters, publication.is_private()),
            "method": parameters.release.method,
            "strategy": publication.calibration().strategies.to_string(),
            "noise_multiplier": publication.calibration().noise_multiplier,
            "columns": parameters.columns,
            "by": parameters.key.as_ref().map(|key| key.column.as_str()),
            "keys": names,
            "all_keys_listed": publication.keys() <= LISTED_KEYS,
            "number_of_keys": publication.keys(),
            "total": offers_total(publication).then(|| publication.key_name(publication.keys())),
            "most_compared": COMPARED_KEYS,
            "horizon": publication.horizon(),
            "published": self.published(),
            "start": start,
            "length": length,
            "runs": runs,
            "view": {
                "key": key.map(|key| publication.key_name(key)),
                "workload": view.workload.to_string(),
                "estimate": estimate,
            },
            "workloads": workloads.collect::<Vec<_>>(),
            "estimates": estimates.collect::<Vec<_>>(),
            "formula": formula.map(|kind| kind.name),
            "components": components.map(|kind| kind.name),
            "plot": plot,
            "projection": view.covariance.name(),
            "level": view.intervals.level,
            "joint": view.intervals.joint,
            "about": view.intervals.about(),
            "reach": view.intervals.count_reach(),
            "ledger": ledger(),
        }))
    }
}
