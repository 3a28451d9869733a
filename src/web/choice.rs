//! Choices of a request: keys, an estimate, a workload, and a series of the estimate.

use std::collections::HashMap;
use std::sync::Arc;

use hushflow_mechanism::view::ViewNoise;
use hushflow_mechanism::workload::Workload;

use super::PageContents;
use crate::estimates::{
    CORRELATION, ESTIMATORS, Estimate, EstimateView, Plot, Reading, Uncertainty, ViewEstimator, pairs,
};
use crate::follow::Subject;
use crate::http::HttpRequest;
use crate::publication::{MomentPublication, Publication};

/// Maximum number of keys in a request, which are drawn in one chart.
pub(super) const COMPARED_KEYS: usize = 6;

/// The group of the number of records, which each estimate has.
pub(super) const COUNT: &str = "records";

/// The choices of a page.
pub(super) struct Offer {
    keys: HashMap<String, u32>,
    /// Noise levels of the workloads for estimates without their own, with the opening one first.
    workloads: Vec<Arc<ViewNoise>>,
    /// Noise levels for estimates with workloads of their own, kept for all readers.
    _kept: Vec<Arc<ViewNoise>>,
    /// The views' estimators, the opening one first, and then others that the log supports.
    estimators: Vec<(String, Arc<dyn ViewEstimator>)>,
}

impl Offer {
    pub(super) fn new(contents: &PageContents) -> Self {
        let PageContents { publication, workloads, .. } = contents;
        let parameters = publication.parameters();
        let total = offers_total(publication).then_some(publication.keys());
        let keys = parameters
            .named_keys()
            .chain(total)
            .map(|key| (publication.key_name(key).to_owned(), key))
            .collect();
        let columns: Vec<_> = parameters.columns.iter().map(|column| column.name.clone()).collect();
        let mut estimators: Vec<(String, Arc<dyn ViewEstimator>)> = Vec::new();
        let log = parameters.log_facts();
        let default_estimators = ESTIMATORS.iter().filter(|kind| kind.flag.is_none());
        let default_estimators = default_estimators.filter_map(|kind| kind.from_texts(&[], &log).ok());
        for estimator in views(contents).map(|view| Arc::clone(&view.estimator)).chain(default_estimators) {
            let name = name_of(&*estimator, &columns);
            if !estimators.iter().any(|(known, _)| *known == name) {
                estimators.push((name, estimator));
            }
        }
        let of_views = views(contents).filter(|view| view.estimator.decays().is_none());
        let all = of_views.map(|view| &view.workload).chain(workloads);
        let mut levels: Vec<Arc<ViewNoise>> = Vec::new();
        for workload in all.chain([&parameters.release.workload]) {
            if !levels.iter().any(|known| known.workload() == workload) {
                levels.push(publication.levels(workload));
            }
        }
        let decays = estimators.iter().filter_map(|(_, estimator)| estimator.decays()).flatten();
        let kept = decays.map(|decay| publication.levels(&Workload::Adam(decay))).collect();
        Self { keys, workloads: levels, _kept: kept, estimators }
    }

    /// Names of the estimators. Regressions of any columns are on offer beside them.
    pub(super) fn estimators(&self) -> impl Iterator<Item = &str> {
        self.estimators.iter().map(|(name, _)| name.as_str())
    }

    pub(super) fn workloads(&self, estimator: &dyn ViewEstimator) -> Vec<Workload> {
        match estimator.decays() {
            Some([first, _]) => vec![Workload::Adam(first)],
            None => self.workloads.iter().map(|levels| levels.workload().clone()).collect(),
        }
    }

    /// Returns the keys of a request, in order; empty without any.
    pub(super) fn keys(&self, request: &HttpRequest) -> Result<Vec<u32>, String> {
        let mut keys = Vec::new();
        for name in request.all("key") {
            let key = *self.keys.get(name).ok_or("key: this log has no such key")?;
            if !keys.contains(&key) {
                keys.push(key);
            }
        }
        if keys.len() > COMPARED_KEYS {
            return Err(format!("key: expected at most {COMPARED_KEYS} keys"));
        }
        Ok(keys)
    }

    /// Returns the first keys whose names contain a text, in any case.
    pub(super) fn search(&self, text: &str, most: u32) -> Vec<u32> {
        let text = text.to_lowercase();
        let found = self.keys.iter().filter(|(name, _)| name.to_lowercase().contains(&text));
        let mut found: Vec<u32> = found.map(|(_, key)| *key).collect();
        found.sort_unstable();
        found.truncate(most as usize);
        found
    }

    /// Returns the estimator of a request.
    pub(super) fn estimator(
        &self,
        request: &HttpRequest,
        publication: &MomentPublication,
    ) -> Result<(String, Arc<dyn ViewEstimator>), String> {
        let name = request.get("estimate").unwrap_or(&self.estimators[0].0);
        if let Some(known) = self.estimators.iter().find(|(known, _)| known == name) {
            return Ok(known.clone());
        }
        let (kind, parameter) = name.split_once(':').unwrap_or((name, ""));
        let flagged = ESTIMATORS.iter().find(|found| found.name == kind && found.flag.is_some());
        let flagged = flagged.ok_or_else(|| {
            let flagged = ESTIMATORS.iter().filter_map(|kind| Some((kind.name, kind.flag.as_ref()?.value)));
            let flagged = flagged.map(|(name, value)| format!("{name}:{value}"));
            let offered: Vec<_> = self.estimators().map(String::from).chain(flagged).collect();
            format!("estimate: this page shows {}", offered.join(", "))
        })?;
        let estimator = flagged.from_flag(parameter, &publication.parameters().log_facts());
        Ok((name.to_owned(), estimator.map_err(|problem| format!("estimate: {problem}"))?))
    }

    /// Returns the view of a request: the opening one, with its estimate and workload replaced.
    pub(super) fn view(
        &self,
        request: &HttpRequest,
        contents: &PageContents,
    ) -> Result<EstimateView, String> {
        let opening = &contents.view;
        let (_, estimator) = self.estimator(request, &contents.publication)?;
        let offered = self.workloads(&*estimator);
        let refused = || {
            let offered = offered.iter().map(Workload::to_string).collect::<Vec<_>>().join(", ");
            format!(
                "workload: this page shows {offered}; `hushflow tail --web … --workload WORKLOAD` adds others"
            )
        };
        let workload = match request.get("workload") {
            None => offered[0].clone(),
            // A matrix is known by the name of its file.
            Some(text) => offered
                .iter()
                .find(|offered| offered.to_string() == text || text.parse().as_ref() == Ok(*offered))
                .cloned()
                .ok_or_else(refused)?,
        };
        let named = views(contents)
            .find(|view| view.workload == workload && view.estimator.name() == estimator.name());
        let name = match named {
            Some(view) => view.name.clone(),
            None => EstimateView::default_name(&workload),
        };
        Ok(EstimateView { name, workload, estimator, total: false, ..opening.clone() })
    }
}

/// The page's views, the opening one first.
fn views(contents: &PageContents) -> impl Iterator<Item = &EstimateView> {
    [&contents.view].into_iter().chain(&contents.more_views)
}

/// Name of an estimator in requests, with its parameter.
fn name_of(estimator: &dyn ViewEstimator, columns: &[String]) -> String {
    match estimator.parameter(columns) {
        Some(parameter) => format!("{}:{parameter}", estimator.name()),
        None => estimator.name().into(),
    }
}

/// Whether the total over keys is offered as one more key called `all`.
pub(super) fn offers_total(publication: &MomentPublication) -> bool {
    let total = publication.key_name(publication.keys());
    let is_taken = (0..publication.keys()).any(|key| publication.key_name(key) == total);
    !is_taken && publication.has_totals()
}

/// Returns the subject to follow for these keys under a view: the keys, their total, or both. No
/// keys mean all keys and the total.
pub(super) fn subject(publication: &MomentPublication, view: &EstimateView, keys: &[u32]) -> Subject {
    let is_total = |key: &u32| *key == publication.keys();
    let has_total = if keys.is_empty() { offers_total(publication) } else { keys.iter().any(is_total) };
    let has_each = keys.is_empty() || !keys.iter().all(is_total);
    let views = [(has_each, false), (has_total, true)];
    let views = views.into_iter().filter(|(is_wanted, _)| *is_wanted);
    let views = views.map(|(_, total)| EstimateView { total, ..view.clone() }).collect();
    Subject { publication: Publication::Moments(publication.clone()), views }
}

/// A series of an estimate: its group, and its index there.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct SeriesChoice {
    pub(super) group: String,
    pub(super) index: usize,
    /// Name in requests, `GROUP:SERIES`.
    pub(super) name: String,
}

impl SeriesChoice {
    /// Returns the series that `of` names: one, or all of a group.
    pub(super) fn named(of: Option<&str>, plot: &Plot, columns: &[String]) -> Result<Vec<Self>, String> {
        let of = of.unwrap_or_else(|| plot.groups.first().map_or(COUNT, |group| group.name));
        let (group, name) = of.split_once(':').map_or((of, None), |(group, name)| (group, Some(name)));
        let names: Vec<String> = if group == COUNT {
            vec![COUNT.into()]
        } else if group == CORRELATION && plot.matrix {
            // A request gets one pair: there may be very many.
            let wanted = pairs(columns.len()).map(|(i, j)| format!("{}~{}", columns[i], columns[j]));
            name.map_or_else(Vec::new, |_| wanted.collect())
        } else {
            let found = plot.groups.iter().find(|found| found.name == group);
            found.map_or_else(Vec::new, |found| {
                found.series.iter().map(|series| series.name.clone()).collect()
            })
        };
        let chosen = (0..).zip(names).filter(|(_, found)| name.is_none_or(|name| name == found));
        let chosen = chosen.map(|(index, found)| Self {
            group: group.into(),
            index,
            name: format!("{group}:{found}"),
        });
        let chosen: Vec<_> = chosen.collect();
        if chosen.is_empty() { Err("of: this estimate has no such series".into()) } else { Ok(chosen) }
    }

    pub(super) fn read(&self, estimate: &dyn Estimate) -> Reading {
        match estimate.moments() {
            Some(moments) if self.group == COUNT => {
                Reading { value: Some(moments.count()), spread: Uncertainty::Noise(moments.noise.count) }
            }
            _ => estimate.reading(&self.group, self.index),
        }
    }
}
