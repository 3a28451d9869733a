//! Reads the section `[release]` if its method is an estimator of windows.

use hushflow_estimators::covariance;
use hushflow_estimators::mean::{self, Scale};

use crate::document::Section;
use crate::pipeline::WindowEstimator;

/// An estimator named by `method`.
#[derive(Clone, Copy)]
pub(super) enum EstimatorMethod {
    Mean(mean::MeanMethod),
    Covariance(covariance::CovarianceMethod),
}

/// Returns the estimator that the document names, if any.
pub(super) fn named(root: &Section<'_>) -> Option<EstimatorMethod> {
    let section = root.peek("release")?;
    // A method that is not text is reported where the section is read.
    let name = section.peek_text("method")?;
    let mean = name.parse().ok().map(EstimatorMethod::Mean);
    mean.or_else(|| name.parse().ok().map(EstimatorMethod::Covariance))
}

/// Reads the section.
pub(super) fn estimator(
    section: &Section<'_>,
    named: EstimatorMethod,
    columns: usize,
) -> Option<WindowEstimator> {
    section.get("method");
    match named {
        EstimatorMethod::Mean(method) => mean(section, method, columns),
        EstimatorMethod::Covariance(method) => {
            let centre = section.number("centre");
            Some(WindowEstimator::Covariance { method, centre: centre.map(|centre| centre.value) })
        }
    }
}

fn mean(section: &Section<'_>, method: mean::MeanMethod, columns: usize) -> Option<WindowEstimator> {
    let corruption = section.require("corruption", section.number("corruption"));
    let trimmed = "a share above 0 and below 1/6: resilience trims three times this share at either end";
    let corruption = match method {
        mean::MeanMethod::Resilience => {
            corruption.and_then(|field| field.filter(trimmed, |&x| x > 0.0 && x < 1.0 / 6.0))
        }
        _ => corruption,
    };
    let range = section.number("range");
    let scale = scale(section, columns);
    let range = range.map(|range| range.value);
    Some(WindowEstimator::Mean { method, corruption: corruption?.value, scale: scale?, range })
}

/// Reads a standard deviation for each column, `"whiten"`, or `"auto"`, the default.
fn scale(section: &Section<'_>, columns: usize) -> Option<Scale> {
    let Some(field) = section.get("scale") else { return Some(Scale::Estimated) };
    match section.peek_text("scale") {
        Some("auto") => return Some(Scale::Estimated),
        Some("whiten") => return Some(Scale::Whitened),
        _ => (),
    }
    let expected =
        format!("\"auto\", \"whiten\" or a list of {columns} numbers above 0, one for each column");
    let scales = field.numbers(&expected)?;
    let valid =
        |scales: &Vec<f64>| scales.len() == columns && scales.iter().all(|x| x.is_normal() && *x > 0.0);
    scales.filter(&expected, valid).map(|scales| Scale::Known(scales.value))
}
