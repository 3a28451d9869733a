//! Serialisation of column scales in the header of a log: absent if estimated, a list if known, or
//! `"whiten"`.

use hushflow_estimators::mean::Scale;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum ScaleSetting {
    Known(Vec<f64>),
    Named(ScaleName),
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum ScaleName {
    Whiten,
}

pub(super) fn serialize<S: Serializer>(scale: &Scale, serializer: S) -> Result<S::Ok, S::Error> {
    let written = match scale {
        Scale::Known(scales) => Some(ScaleSetting::Known(scales.clone())),
        Scale::Estimated => None,
        Scale::Whitened => Some(ScaleSetting::Named(ScaleName::Whiten)),
    };
    written.serialize(serializer)
}

pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Scale, D::Error> {
    Ok(match Option::<ScaleSetting>::deserialize(deserializer)? {
        Some(ScaleSetting::Known(scales)) => Scale::Known(scales),
        Some(ScaleSetting::Named(ScaleName::Whiten)) => Scale::Whitened,
        None => Scale::Estimated,
    })
}
