//! `hushflow tail --sample`: synthetic records from the releases, at no privacy cost.

use std::collections::BTreeMap;
use std::io::Write;

use hushflow::follow::Shown;
use hushflow::lines::{Format, csv_line};
use hushflow::mechanism::estimate::density::{Density, DensityError};
use hushflow::mechanism::noise::NoiseSource;
use hushflow::publication::MomentPublication;
use serde_json::{Map, Value};

use super::super::CliError;

/// Draws from the newest density of each key.
pub(super) struct Sample {
    publication: MomentPublication,
    size: u32,
    source: NoiseSource,
    format: Format,
    /// Densities by key, in the units of the columns.
    newest: BTreeMap<u32, Result<Density, DensityError>>,
}

impl Sample {
    pub(super) fn new(publication: MomentPublication, size: u32, seed: Option<u64>, format: Format) -> Self {
        let source = seed.map_or(NoiseSource::System, NoiseSource::Seeded);
        Self { publication, size, source, format, newest: BTreeMap::new() }
    }

    /// Keeps the newest density of a key.
    pub(super) fn keep(&mut self, shown: &Shown) {
        if let Some(density) = shown.found.density() {
            self.newest.insert(shown.key, density.cloned().map_err(|error| *error));
        }
    }

    /// Writes the samples of all keys.
    pub(super) fn write(self, out: &mut impl Write) -> Result<(), CliError> {
        let columns = self.publication.parameters().columns.iter().map(|column| column.name.clone());
        let keyed = self.publication.parameters().key.as_ref().map(|key| key.column.clone());
        let names: Vec<String> = keyed.iter().cloned().chain(columns).collect();
        if self.format != Format::Json {
            writeln!(out, "{}", csv_line(names.clone()))?;
        }
        for (&key, density) in &self.newest {
            let name = self.publication.key_name(key);
            let failed = |reason: String| CliError::failed(format!("no sample of {name}: {reason}"));
            let density = density.as_ref().map_err(|error| failed(error.to_string()))?;
            let sampler = density.sampler().ok_or_else(|| failed(DensityError::Singular.to_string()))?;
            // u64::MAX is no epoch, so these random numbers differ from those of any release.
            let mut random = self.source.generator(u64::MAX, key.into())?;
            for _ in 0..self.size {
                let record = sampler.draw(&mut random);
                let label = keyed.as_ref().map(|_| Value::from(name));
                let fields = label.into_iter().chain(record.iter().map(|&value| value.into()));
                writeln!(out, "{}", self.line(&names, fields))?;
            }
        }
        Ok(out.flush()?)
    }

    fn line(&self, names: &[String], fields: impl Iterator<Item = Value>) -> String {
        match self.format {
            Format::Json => {
                Value::Object(names.iter().cloned().zip(fields).collect::<Map<_, _>>()).to_string()
            }
            Format::Table | Format::Csv => csv_line(fields.map(|field| match field {
                Value::String(text) => text,
                number => number.to_string(),
            })),
        }
    }
}
