//! The fields of an estimate: named numbers and words. CSV, data frames, Parquet and Arrow files
//! have a column for each field; a database has a row for each statistic.

use hushflow_mechanism::estimate::intervals::Interval;

/// A field of an estimate.
#[derive(Clone, Debug, PartialEq)]
pub struct EstimateField {
    /// Statistic, such as `mean`.
    pub statistic: &'static str,
    /// The part of the statistic that the field holds.
    pub part: FieldPart,
    /// Subject of the statistic: a column, a pair of columns, or the number of a component.
    pub of: Vec<String>,
    /// Its value.
    pub value: FieldValue,
}

/// A part of a statistic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FieldPart {
    /// The number or the word itself.
    Value,
    /// Standard deviation of the noise in it.
    Noise,
    /// Lower end of its interval.
    Lower,
    /// Upper end of its interval.
    Upper,
}

/// The value of a field.
#[derive(Clone, Debug, PartialEq)]
pub enum FieldValue {
    /// A finite number; `None` if it is unknown or infinite.
    Number(Option<f64>),
    /// A word or a sentence, which may be empty.
    Word(String),
}

impl EstimateField {
    /// Makes the field of a number.
    pub fn number(
        statistic: &'static str,
        part: FieldPart,
        of: &[&str],
        number: impl Into<Option<f64>>,
    ) -> Self {
        let of = of.iter().map(|&of| of.into()).collect();
        let number: Option<f64> = number.into();
        let value = FieldValue::Number(number.filter(|number| number.is_finite()));
        EstimateField { statistic, part, of, value }
    }

    /// Makes the field of a word.
    pub fn word(statistic: &'static str, word: Option<&str>) -> Self {
        let value = FieldValue::Word(word.unwrap_or_default().into());
        EstimateField { statistic, part: FieldPart::Value, of: Vec::new(), value }
    }

    /// Makes the fields of a number and its noise.
    pub fn noisy(statistic: &'static str, of: &[&str], found: Option<(f64, f64)>) -> [Self; 2] {
        [
            Self::number(statistic, FieldPart::Value, of, found.map(|found| found.0)),
            Self::number(statistic, FieldPart::Noise, of, found.map(|found| found.1)),
        ]
    }

    /// Makes the fields of the ends of an interval.
    pub fn ends(statistic: &'static str, of: &[&str], interval: Option<Interval>) -> [Self; 2] {
        [
            Self::number(statistic, FieldPart::Lower, of, interval.map(|interval| interval.lower)),
            Self::number(statistic, FieldPart::Upper, of, interval.map(|interval| interval.upper)),
        ]
    }

    /// Makes the fields of a number, its noise and the ends of its interval.
    pub fn all(
        statistic: &'static str,
        of: &[&str],
        found: Option<(f64, f64)>,
        interval: Option<Interval>,
    ) -> [Self; 4] {
        let [value, noise] = Self::noisy(statistic, of, found);
        let [lower, upper] = Self::ends(statistic, of, interval);
        [value, noise, lower, upper]
    }

    /// Returns its name as a column, such as `mean_noise_delay`.
    pub fn title(&self) -> String {
        let part = match self.part {
            FieldPart::Value => None,
            FieldPart::Noise => Some("noise"),
            FieldPart::Lower => Some("lower"),
            FieldPart::Upper => Some("upper"),
        };
        let words = [self.statistic].into_iter().chain(part).chain(self.of.iter().map(String::as_str));
        words.collect::<Vec<_>>().join("_")
    }

    /// Returns its value as text; empty if it is unknown.
    pub fn text(&self) -> String {
        match &self.value {
            FieldValue::Number(number) => number.map_or_else(String::new, |number| number.to_string()),
            FieldValue::Word(word) => word.clone(),
        }
    }
}

/// The estimate of one key at one epoch under one view, with the fields that identify it.
#[derive(Clone, Debug, PartialEq)]
pub struct EstimateRecord {
    /// The epoch.
    pub epoch: u64,
    /// Microseconds since 1970 at which the epoch begins; `None` if epochs are counted.
    pub start: Option<i64>,
    /// Name of the key; `all` for the sum over all keys.
    pub key: String,
    /// `view`, or `estimator` for estimates of windows, which have no views.
    pub by: &'static str,
    /// Name of the view or the estimator.
    pub view: String,
    /// Whether the release is private: false if its noise was drawn from a seed.
    pub private: bool,
    /// The fields: counts, then those of the estimate.
    pub fields: Vec<EstimateField>,
}

/// A statistic with its noise and interval.
#[derive(Clone, Debug, PartialEq)]
pub struct StatisticRow<'a> {
    /// Statistic, such as `mean`.
    pub statistic: &'static str,
    /// Subject of the statistic.
    pub of: &'a [String],
    /// The parts that are known, in the order of [`FieldPart`].
    pub numbers: [Option<f64>; 4],
}

impl EstimateRecord {
    /// Returns its statistics, each once, in the order of the fields.
    pub fn statistics(&self) -> Vec<StatisticRow<'_>> {
        let mut rows: Vec<StatisticRow<'_>> = Vec::new();
        for field in &self.fields {
            let FieldValue::Number(number) = field.value else { continue };
            let is_same =
                |row: &&mut StatisticRow<'_>| row.statistic == field.statistic && row.of == field.of;
            let part = field.part as usize;
            match rows.iter_mut().find(is_same) {
                Some(row) => row.numbers[part] = number,
                None => {
                    let mut numbers = [None; 4];
                    numbers[part] = number;
                    rows.push(StatisticRow { statistic: field.statistic, of: &field.of, numbers });
                }
            }
        }
        rows
    }

    /// Returns the text about the estimate as a whole: its quality, or the reason why there is
    /// none.
    pub fn word(&self) -> Option<&str> {
        let word = self.fields.iter().find_map(|field| match &field.value {
            FieldValue::Word(word) => Some(word.as_str()),
            FieldValue::Number(_) => None,
        });
        word.filter(|word| !word.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_of_a_statistic_are_one_row() {
        let of = ["a", "b_c"];
        let mean = |part, number: f64| EstimateField::number("mean", part, &["a"], number);
        let mut fields = vec![
            mean(FieldPart::Value, 1.5),
            EstimateField::number("covariance", FieldPart::Value, &of, f64::INFINITY),
            mean(FieldPart::Noise, 0.25),
            EstimateField::word("quality", Some("good")),
        ];
        fields.extend(EstimateField::ends("mean", &["a"], Some(Interval { lower: 1.0, upper: 2.0 })));
        let titles: Vec<_> = fields.iter().map(EstimateField::title).collect();
        let expected =
            ["mean_a", "covariance_a_b_c", "mean_noise_a", "quality", "mean_lower_a", "mean_upper_a"];
        assert_eq!(titles, expected);
        let texts: Vec<_> = fields.iter().map(EstimateField::text).collect();
        assert_eq!(texts, ["1.5", "", "0.25", "good", "1", "2"]);
        let record = EstimateRecord {
            epoch: 1,
            start: None,
            key: "k".into(),
            by: "view",
            view: "v".into(),
            private: true,
            fields,
        };
        let numbers: Vec<_> = record.statistics().iter().map(|row| row.numbers).collect();
        assert_eq!(numbers, [[Some(1.5), Some(0.25), Some(1.0), Some(2.0)], [None; 4]]);
        assert_eq!(record.word(), Some("good"));
    }
}
