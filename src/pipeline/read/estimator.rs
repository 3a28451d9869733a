//! Reads the section `[release]` if its method is an estimator of windows.

use std::num::NonZeroU64;

use hushflow_estimators::covariance;
use hushflow_estimators::mean::{self, Scale};
use hushflow_mechanism::windows::WindowSpan;

use crate::document::Section;
use crate::pipeline::WindowEstimator;
use crate::pipeline::fields::{GROWING, MAX_EPOCHS};

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

/// Reads which epochs a window contains, and when windows end.
pub(super) fn window(section: &Section<'_>) -> Option<WindowSpan> {
    let stride = match section.has("stride") {
        false => NonZeroU64::MIN,
        true => NonZeroU64::new(section.count("stride")?.value)?,
    };
    if section.peek_text("window") == Some(GROWING) {
        section.get("window");
        return Some(WindowSpan::Growing { first: stride });
    }
    if !section.has("window") {
        return Some(WindowSpan::Sliding { length: stride, stride });
    }
    let expected = format!(
        "a whole number from 1 to {MAX_EPOCHS}, at least stride = {stride}, or rows would be in no window; or \"{GROWING}\""
    );
    let fits = |length: &u64| (stride.get()..=MAX_EPOCHS).contains(length);
    let length = section.count("window")?.filter(&expected, fits)?;
    Some(WindowSpan::Sliding { length: NonZeroU64::new(length.value)?, stride })
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
