//! CSV: a header, then a line for every key and epoch. Unknown fields are empty.

use hushflow_mechanism::estimate::intervals::Interval;

use super::Line;

pub(super) fn header(line: &Line<'_>) -> String {
    let columns: Vec<&str> = line.columns().collect();
    let pairs = line.pairs();
    let mut fields: Vec<String> =
        ["epoch", "start", "key", "view", "count", "count_noise"].map(String::from).into();
    let pair_fields = |prefix: &str, fields: &mut Vec<String>| {
        fields.extend(pairs.iter().map(|&(i, j)| format!("{prefix}_{}_{}", columns[i], columns[j])));
    };
    match line.density {
        None => {
            fields.extend(columns.iter().map(|column| format!("first_{column}")));
            fields.push("first_noise".into());
            let prefix = if line.squares_epoch_sums() { "squared_sum" } else { "second" };
            pair_fields(prefix, &mut fields);
            if !pairs.is_empty() {
                fields.extend([format!("{prefix}_noise"), format!("{prefix}_off_diagonal_noise")]);
            }
        }
        Some(_) => {
            fields.extend(columns.iter().map(|column| format!("mean_{column}")));
            fields.extend(columns.iter().map(|column| format!("mean_noise_{column}")));
            pair_fields("covariance", &mut fields);
            pair_fields("covariance_noise", &mut fields);
            fields.push("quality".into());
            for end in ["lower", "upper"] {
                fields.extend(columns.iter().map(|column| format!("mean_{end}_{column}")));
                pair_fields(&format!("covariance_{end}"), &mut fields);
            }
        }
    }
    csv_line(fields)
}

pub(super) fn line(line: &Line<'_>) -> String {
    let moments = line.moments;
    let number = |x: f64| x.to_string();
    let mut fields = vec![moments.epoch.to_string(), line.start(), line.key().into(), line.view.name.clone()];
    fields.extend([moments.count(), moments.noise.count].map(number));
    match line.density {
        None => {
            let off_diagonal = moments.noise.second * std::f64::consts::FRAC_1_SQRT_2;
            fields.extend(moments.first().iter().copied().map(number));
            fields.push(number(moments.noise.first));
            fields.extend(moments.second().iter().copied().map(number));
            if !moments.second().is_empty() {
                fields.extend([moments.noise.second, off_diagonal].map(number));
            }
        }
        Some(density) => {
            let pairs = line.pairs();
            match density {
                Ok(density) => {
                    fields.extend(density.mean.iter().chain(density.mean_noise.iter()).copied().map(number));
                    for matrix in [&density.covariance, &density.covariance_noise] {
                        fields.extend(pairs.iter().map(|&pair| number(matrix[pair])));
                    }
                }
                Err(_) => fields
                    .extend(std::iter::repeat_n(String::new(), 2 * (line.columns().count() + pairs.len()))),
            }
            fields.push(line.quality().into());
            let means = (0..line.columns().count()).map(|column| line.mean_interval(column));
            let covariances = pairs.iter().map(|&pair| line.covariance_interval(pair));
            let intervals: Vec<_> = means.chain(covariances).collect();
            for end in [|interval: Interval| interval.lower, |interval: Interval| interval.upper] {
                let finite = |interval: &Option<Interval>| interval.map(end).filter(|x| x.is_finite());
                fields.extend(intervals.iter().map(|x| finite(x).map_or_else(String::new, number)));
            }
        }
    }
    csv_line(fields)
}

/// Formats the fields of a CSV line and quotes those with commas, quotes or line ends (RFC 4180).
pub fn csv_line(fields: impl IntoIterator<Item = String>) -> String {
    let quoted = fields.into_iter().map(|field| {
        if field.contains([',', '"', '\n', '\r']) {
            format!("\"{}\"", field.replace('"', "\"\""))
        } else {
            field
        }
    });
    quoted.collect::<Vec<_>>().join(",")
}
