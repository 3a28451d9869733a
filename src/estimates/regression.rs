//! `regression`: the least squares line of one column on others, from full second moments.
//!
//! Let q = (1, x), B = Σ qqᵀ and c = Σ qy, over the weighted records in centred and scaled
//! coordinates. The line is θ = B⁻¹c. A release gives B̂ = B + E and ĉ = c + e. The entries of e,
//! and of E on and above the diagonal, are independent Gaussian noise of public variances: τ₀² for
//! the count, τ₁² for sums, τ₂² for squares, τ₂²/2 for products. Call them W for E and w for e.
//!
//! **Errors in variables.** E has mean 0, but the inverse of B + E does not have mean B⁻¹. To
//! second order (B + E)⁻¹ = B⁻¹ − B⁻¹EB⁻¹ + B⁻¹EB⁻¹EB⁻¹, and e is independent of E, so
//!
//! ```text
//! E[B̂⁻¹ĉ] = θ + B⁻¹Nθ,    N = E[E B⁻¹ E],    Nᵢᵢ = Σⱼ Wᵢⱼ (B⁻¹)ⱼⱼ,    Nᵢⱼ = Wᵢⱼ (B⁻¹)ᵢⱼ
//! ```
//!
//! and θ̂ = (B̂ + N)⁻¹ĉ lacks this bias. N is positive semi-definite, so the correction keeps the
//! matrix positive definite. It is the correction of moment matrices for known errors (Fuller 1987,
//! *Measurement Error Models*, chapter 3), where the errors are in the moments. For method `pp` the
//! errors are in the values, and the view has subtracted their variance (`squares`).
//!
//! **Ridge.** Noise may bring eigenvalues of B̂ near 0 or below. The expected norm of E is about ω
//! = 2 max √Σⱼ Wᵢⱼ (Bandeira & van Handel 2016). So B̂ + κI with κ = max(0, ω − λ_min(B̂)) replaces
//! B̂ above: then no direction appears to vary less than the noise level ω. The ridge is computed
//! from released and public numbers, as in Wang 2018 (AdaSSP), but without a budget of its own. If
//! the ridge is above 0, the data do not determine the line, and its coefficients have no
//! intervals.
//!
//! **Standard errors.** ĉ − B̂θ = e − Eθ has exactly the covariance V, Vᵢᵢ = wᵢ + Σⱼ Wᵢⱼθⱼ², Vᵢⱼ =
//! Wᵢⱼθᵢθⱼ. To first order that of θ̂ is GVG with G = (B̂ + N)⁻¹, at θ = θ̂. Intervals come from
//! the residuals themselves (`profile`). For the population, the sampling error hs²G is added in
//! squares: s² is the variance of the residuals, and h the heaviest weight of a record.
//!
//! **Missing values by column.** Each covariance is of the rows that have both columns, and the
//! moments of the complete rows are not released. So there is a line only under the assumption that
//! values are missing at random, and only if released numbers do not contradict it. They contradict
//! it if a column's mean over the rows of a pair differs from its mean over all its rows, or if a
//! residual variance is negative, by more than `CONTRADICTION` standard deviations. The records of
//! the formulas are replaced by ones at the estimated mean: B = n (1, 0; 0, Σ), n the least count
//! of a pair, with the noises of the means and covariances. Then the line's slopes are those of the
//! covariances, and it passes through the means.
//!
//! **Residuals.** ns² = Σy² − 2θᵀc + θᵀBθ. At θ̂ its estimate is too small by tr(GV) on average,
//! which is added. To first order its noise has variance τ₂² + 4Σᵢ wᵢθᵢ² + Σᵢⱼ (2 − δᵢⱼ) Wᵢⱼθᵢ²θⱼ².

use std::sync::Arc;

use hushflow_estimators::covariance::estimate::coefficients;
use hushflow_mechanism::estimate::by_column::CONTRADICTION;
use hushflow_mechanism::estimate::debias::MIN_COUNT_TO_NOISE;
use hushflow_mechanism::estimate::density::DensityError;
use hushflow_mechanism::estimate::intervals::{Confidence, Interval, IntervalSubject, LEAST_SAMPLE};
use hushflow_mechanism::estimate::projection::Spectrum;
use hushflow_mechanism::estimate::selection::{Selection, count_interval};
use hushflow_mechanism::moments::SecondMoment;
use hushflow_mechanism::view::Moments;
use nalgebra::{Cholesky, DMatrix};
use serde_json::{Map, Value, json};

use super::gaussian::{ends, quality};
use super::{
    Averages, Band, COUNTS, Cell, ChartGroup, ChartSeries, ColumnScales, Estimate, EstimateField,
    EstimatorKind, FieldPart, Flag, HistogramNeed, LogFacts, OneAverage, Plot, Reading, ScaledView,
    ViewEstimator,
};
use crate::document::definition::{FieldDefinition, FieldType};
use crate::document::{Field, Section};

mod input;
mod profile;

use input::LineInput;
use profile::{NormalEquations, RegressionLine, residual_noise};

pub(super) const ESTIMATOR: EstimatorKind = EstimatorKind {
    name: NAME,
    help: "Least squares line of one column on others",
    needs: SecondMoment::Full,
    histograms: HistogramNeed::None,
    own_workloads: false,
    flag: Some(Flag {
        name: "regress",
        value: "Y~X1+X2",
        help: "Show the least squares line of one column on others, such as arr_delay~dep_delay+distance",
        fields,
    }),
    fields: &[
        FieldDefinition::required("target", FieldType::Text, "\"y\"", "The column to explain."),
        FieldDefinition::required("on", FieldType::Texts, "[\"x1\", \"x2\"]", "The columns that explain it."),
    ],
    read,
};

const NAME: &str = "regression";

/// The fields of `y~x1+x2`.
fn fields(formula: &str) -> Result<toml::Table, String> {
    let expected = || format!("found {formula:?}, expected TARGET~COLUMN+COLUMN, such as y~x1+x2");
    let (target, on) = formula.split_once('~').ok_or_else(expected)?;
    let on: Vec<_> = on.split('+').map(|name| toml::Value::from(name.trim())).collect();
    Ok(toml::Table::from_iter([("target".into(), target.trim().into()), ("on".into(), on.into())]))
}

/// Reads `target` and `on`.
fn read(section: &Section<'_>, log: &LogFacts<'_>) -> Option<Arc<dyn ViewEstimator>> {
    let target = section.required_text("target");
    let on = section.require("on", section.get("on")).and_then(Field::texts);
    let (target_name, on) = (target.as_ref().map(|target| target.value), on?);
    let target = log.column(&target?);
    let mut positions = Vec::new();
    for name in &on {
        let index = log.column(name);
        if Some(name.value) == target_name {
            name.report(format!("{:?} is the target: leave it out", name.value));
        } else if index.is_some_and(|index| log.columns.is_some() && positions.contains(&index)) {
            name.report(format!("the column {:?} is named twice: remove one", name.value));
        }
        positions.extend(index);
    }
    (positions.len() == on.len()).then_some(())?;
    Some(Arc::new(Regression { target: target?, on: positions }))
}

/// The positions of the columns.
#[derive(Debug)]
struct Regression {
    target: usize,
    on: Vec<usize>,
}

impl ViewEstimator for Regression {
    fn name(&self) -> &'static str {
        NAME
    }

    fn averages(&self) -> Averages<'_> {
        Averages::One(self)
    }

    fn plot(&self, scaled: &ScaledView) -> Plot {
        let intercept = ChartSeries {
            name: "intercept".into(),
            value: json!(["intercept"]),
            band: Band::Interval(json!(["intercept_interval"])),
        };
        let slopes = self.on.iter().map(|&column| &scaled.columns[column]).map(|name| ChartSeries {
            name: name.clone(),
            value: json!(["coefficients", name]),
            band: Band::Interval(json!(["coefficients_interval", name])),
        });
        let title = format!("Regression of {}: coefficient", scaled.columns[self.target]);
        let series = [intercept].into_iter().chain(slopes).collect();
        Plot {
            band: scaled.view.intervals.promise("an epoch"),
            groups: vec![ChartGroup { name: "coefficient", title, series }],
            matrix: false,
        }
    }

    fn parameter(&self, columns: &[String]) -> Option<String> {
        let on: Vec<_> = self.on.iter().map(|&column| columns[column].as_str()).collect();
        Some(format!("{}~{}", columns[self.target], on.join("+")))
    }
}

impl OneAverage for Regression {
    fn estimate(&self, moments: Moments, scaled: &Arc<ScaledView>) -> Arc<dyn Estimate> {
        let line = self.line(&moments, scaled);
        let names = self.on.iter().map(|&column| scaled.columns[column].clone()).collect();
        let target = scaled.columns[self.target].clone();
        Arc::new(LeastSquaresEstimate { scaled: Arc::clone(scaled), target, names, moments, line })
    }
}

impl Regression {
    fn line(&self, moments: &Moments, scaled: &ScaledView) -> Result<RegressionLine, DensityError> {
        let LineInput { sums, variances, count, scales } = self.input(moments, scaled)?;
        if !sums.iter().chain(&variances).all(|number| number.is_finite()) {
            return Err(DensityError::OutOfRange);
        }
        let size = self.on.len() + 1;
        let identity = DMatrix::<f64>::identity(size, size);
        let regressors = |matrix: &DMatrix<f64>| matrix.view((0, 0), (size, size)).into_owned();
        let (released, levels) = (regressors(&sums), regressors(&variances));
        let spectrum = Spectrum::of(&released).ok_or(DensityError::Eigenvalues)?;
        let least = spectrum.values.min();
        let norm = 2.0 * levels.row_iter().map(|row| row.sum()).fold(0.0, f64::max).sqrt();
        let rounding = size as f64 * f64::EPSILON * released.trace();
        let ridge = (norm.max(rounding) - least).max(0.0);
        let inverse = |matrix| Some(Cholesky::new(matrix)?.inverse());
        let ridged = inverse(&released + &identity * ridge).ok_or(DensityError::Singular)?;
        let bias = DMatrix::from_fn(size, size, |i, j| match i == j {
            true => (0..size).map(|k| levels[(i, k)] * ridged[(k, k)]).sum(),
            false => levels[(i, j)] * ridged[(i, j)],
        });
        let mut corrected = sums.clone();
        corrected.view_mut((0, 0), (size, size)).copy_from(&(&released + &bias));
        let theta = coefficients(&corrected, size, ridge).ok_or(DensityError::Singular)?;
        let solver = inverse(&released + &identity * ridge + bias).ok_or(DensityError::Singular)?;

        let squares = theta.component_mul(&theta);
        let product_levels = variances.column(size).rows(0, size).into_owned();
        let noise = residual_noise(&levels, &product_levels, &theta);
        let covariance = &solver * &noise * &solver;
        let residual = sums[(size, size)] - 2.0 * theta.dot(&sums.column(size).rows(0, size))
            + (&released * &theta).dot(&theta)
            + (&solver * &noise).trace();
        let quartic = 2.0 * (&levels * &squares).dot(&squares)
            - levels.diagonal().dot(&squares.component_mul(&squares));
        let residual_noise = variances[(size, size)] + 4.0 * product_levels.dot(&squares) + quartic;
        let residual = (residual / count, residual_noise.sqrt() / count);
        if scaled.indicator_step.is_some() && residual.0 < -CONTRADICTION * residual.1 {
            return Err(DensityError::NotMissingAtRandom);
        }

        let confidence = scaled.view.confidence(moments.epoch);
        let sampling = match confidence.subject {
            _ if ridge > 0.0 => f64::INFINITY,
            IntervalSubject::Records => 0.0,
            IntervalSubject::Population { heaviest } => match count / heaviest - size as f64 {
                freedom if freedom < LEAST_SAMPLE => f64::INFINITY,
                freedom => residual.0.max(residual.1) * count / freedom,
            },
        };
        let units = self.units(&scales);
        let deviations = |covariance: &DMatrix<f64>| {
            (&units * covariance * units.transpose()).diagonal().map(|variance| variance.max(0.0).sqrt())
        };
        let noise = deviations(&covariance);
        let mut coefficients = &units * &theta;
        coefficients[0] += scales.centres[self.target];

        let z = self.quantile(confidence);
        let inverse = units.clone().try_inverse().filter(|_| sampling.is_finite());
        let equations = inverse.map(|inverse| {
            let directions = inverse * DMatrix::from_diagonal(&noise);
            NormalEquations {
                slopes: &released * &directions,
                directions,
                residual: sums.column(size).rows(0, size) - &released * &theta,
                centre: theta,
                levels,
                product_levels,
            }
        });
        let sampling_error = deviations(&(solver * sampling.min(f64::MAX))) * z;
        let square = scales.half_widths[self.target].powi(2);
        let residual = (residual.0 * square, residual.1 * square);
        let reach = confidence.normal_quantile() * residual.1;
        // With a ridge the line fits worse than the least squares line, so only the upper end
        // holds.
        let lower = if ridge > 0.0 { 0.0 } else { residual.0 - reach };
        let allowed = Interval { lower: 0.0, upper: square };
        let residual_interval = Interval { lower, upper: residual.0 + reach }.within(allowed, reach);
        let ridge = ridge / count;
        let line = RegressionLine {
            coefficients,
            noise,
            equations,
            z,
            sampling_error,
            ridge,
            residual,
            residual_interval,
        };
        let numbers = line.coefficients.iter().chain(&line.noise).chain([&residual.0, &residual.1]);
        if numbers.copied().all(f64::is_finite) { Ok(line) } else { Err(DensityError::OutOfRange) }
    }

    /// Converts coefficients to the units of the columns, except for the middle of the target.
    fn units(&self, scales: &ColumnScales) -> DMatrix<f64> {
        let ColumnScales { centres, half_widths } = scales;
        let mut units = DMatrix::identity(self.on.len() + 1, self.on.len() + 1);
        for (index, &column) in (1..).zip(&self.on) {
            units[(index, index)] = half_widths[column].recip();
            units[(0, index)] = -centres[column] / half_widths[column];
        }
        units * half_widths[self.target]
    }

    /// Returns the quantile z of each interval.
    fn quantile(&self, confidence: Confidence) -> f64 {
        let statements = if confidence.joint { self.on.len() + 1 } else { 1 };
        let level = 1.0 - (1.0 - confidence.level) / statements as f64;
        Confidence { level, ..confidence }.normal_quantile()
    }
}

#[derive(Debug)]
struct LeastSquaresEstimate {
    scaled: Arc<ScaledView>,
    target: String,
    /// Names of the columns of `on`.
    names: Vec<String>,
    moments: Moments,
    line: Result<RegressionLine, DensityError>,
}

impl LeastSquaresEstimate {
    fn of_line<T>(&self, value: impl Fn(&RegressionLine) -> T) -> Option<T> {
        self.line.as_ref().ok().map(value)
    }

    /// The interval of the intercept (0) or a slope.
    fn interval(&self, index: usize) -> Option<Interval> {
        self.line.as_ref().ok().filter(|line| line.ridge == 0.0).map(|line| line.interval(index))
    }

    /// The slopes, by column.
    fn slopes(&self, value: impl Fn(usize) -> Value) -> Value {
        self.names.iter().cloned().zip((1..).map(value)).collect()
    }
}

impl Estimate for LeastSquaresEstimate {
    fn moments(&self) -> Option<&Moments> {
        Some(&self.moments)
    }

    fn json(&self, object: &mut Map<String, Value>) {
        let intervals = self.scaled.view.intervals;
        let coefficient = |index: usize| json!(self.of_line(|line| line.coefficients[index]));
        let noise = |index: usize| json!(self.of_line(|line| line.noise[index]));
        let interval = |index: usize| ends(self.interval(index));
        let fields = [
            ("quality", self.quality().into()),
            ("target", self.target.as_str().into()),
            ("intercept", coefficient(0)),
            ("intercept_noise", noise(0)),
            ("coefficients", self.slopes(coefficient)),
            ("coefficients_noise", self.slopes(noise)),
            ("ridge", json!(self.of_line(|line| line.ridge))),
            ("residual_variance", json!(self.of_line(|line| line.residual.0))),
            ("residual_variance_noise", json!(self.of_line(|line| line.residual.1))),
            ("level", intervals.level.into()),
            ("joint", intervals.joint.into()),
            ("about", intervals.about().into()),
            ("missing_at_random", intervals.missing_at_random.into()),
            ("intercept_interval", interval(0)),
            ("coefficients_interval", self.slopes(interval)),
        ];
        object.extend(fields.map(|(name, value)| (name.into(), value)));
    }

    fn fields(&self) -> Vec<EstimateField> {
        let found = |index: usize| self.of_line(|line| (line.coefficients[index], line.noise[index]));
        let slope = |(name, index): (&String, usize)| {
            EstimateField::all("coefficient", &[name], found(index), self.interval(index))
        };
        let residual = self.of_line(|line| line.residual);
        let ridge = self.of_line(|line| line.ridge);
        EstimateField::all("intercept", &[], found(0), self.interval(0))
            .into_iter()
            .chain(self.names.iter().zip(1..).flat_map(slope))
            .chain([EstimateField::number("ridge", FieldPart::Value, &[], ridge)])
            .chain(EstimateField::noisy("residual_variance", &[], residual))
            .chain([EstimateField::word("quality", self.quality())])
            .collect()
    }

    fn legend(&self) -> String {
        self.scaled.view.intervals.legend(false)
    }

    fn titles(&self) -> Vec<String> {
        let slopes = self.names.iter().map(|name| format!("coef {name}"));
        let ends = [format!("{} at 0", self.target)].into_iter().chain(slopes);
        ends.chain(["residual sd".into()]).collect()
    }

    fn cells(&self) -> Result<Vec<Cell>, String> {
        let line = self.line.as_ref().map_err(DensityError::to_string)?;
        let coefficient = |index: usize| {
            let interval = self.interval(index).unwrap_or(Interval::UNBOUNDED);
            Cell::of_interval(line.coefficients[index], interval, Interval::UNBOUNDED)
        };
        let deviation = match line.residual_interval.square_root() {
            Interval { lower: 0.0, upper } => Cell::AtMost(upper),
            interval => Cell::of_interval(line.residual.0.max(0.0).sqrt(), interval, COUNTS),
        };
        Ok((0..=self.names.len()).map(coefficient).chain([deviation]).collect())
    }

    fn reading(&self, _group: &str, index: usize) -> Reading {
        Reading::within(self.of_line(|line| line.coefficients[index]), self.interval(index))
    }

    fn quality(&self) -> Option<&'static str> {
        let by_column = self.scaled.indicator_step.is_some();
        Some(match &self.line {
            Ok(line) if line.ridge > 0.0 => "noise-dominated",
            Ok(_) if by_column => "if-missing-at-random",
            Ok(_) => "good",
            Err(error) => quality(Err(error)),
        })
    }

    fn count_interval(&self) -> Option<Interval> {
        let (count, noise) = (self.moments.count(), self.moments.noise.count);
        let least = MIN_COUNT_TO_NOISE * noise;
        let range = if count > least { (least, f64::INFINITY) } else { (f64::NEG_INFINITY, least) };
        let selection = Selection::by_range(count, range, noise, 1.0);
        Some(count_interval(count, noise, self.scaled.view.intervals.level, &[selection]))
    }
}
#[cfg(test)]
mod tests;
