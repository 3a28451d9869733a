//! `/readings`: the numbers of every series of every estimate are those of the JSON lines, and
//! documents stay small.

use serde_json::{Value, json};

use super::{Site, lines, published, published_with};
use crate::harness::Lab;

impl Site {
    fn readings(&self, query: &str) -> Value {
        let (status, body) = self.get(&format!("/readings?{query}"), "");
        assert_eq!(status, "HTTP/1.1 200 OK", "{query}: {body}");
        serde_json::from_str(&body).expect("JSON")
    }
}

fn look_up<'a>(line: &'a Value, path: &Value) -> &'a Value {
    path.as_array().expect("a path").iter().fold(line, |found, step| match step.as_u64() {
        Some(index) => &found[index as usize],
        None => &found[step.as_str().expect("a name")],
    })
}

/// Value and both ends of a series in a line, by the paths that the page gets.
fn located(line: &Value, series: &Value, reach: f64) -> [Option<f64>; 3] {
    let value = look_up(line, &series["value"]).as_f64();
    match series.get("noise") {
        Some(path) => {
            let far = look_up(line, path).as_f64().map(|noise| noise * reach);
            [
                value,
                value.zip(far).map(|(value, far)| value - far),
                value.zip(far).map(|(value, far)| value + far),
            ]
        }
        None => {
            let interval = look_up(line, &series["interval"]);
            [value, interval[0].as_f64(), interval[1].as_f64()]
        }
    }
}

#[test]
fn readings_are_the_numbers_of_lines_for_every_estimate() {
    let lab = Lab::new();
    let state = published_with(&lab, "[[histograms]]\ncolumn = 'a'\nbins = 5\n");
    let site = Site::of(&state, &["--workload", "window:7"]);
    for (estimate, flags) in [
        ("gaussian", &["--workload", "window:7"][..]),
        ("moments", &["--workload", "window:7", "--view", "moments"]),
        ("adam", &["--view", "adam"]),
        ("regression:a~b+c", &["--workload", "window:7", "--regress", "a~b+c"]),
        ("histogram", &["--workload", "window:7", "--view", "histogram"]),
        ("quantiles:0.5,0.9", &["--workload", "window:7", "--quantiles", "0.5,0.9"]),
    ] {
        let named = estimate.replace('+', "%2B").replace(',', "%2C");
        let (_, about) = site.get(&format!("/about?estimate={named}"), "");
        let about: Value = serde_json::from_str(&about).expect("JSON");
        let reach = about["reach"].as_f64().expect("a number");
        let of_key = |key: &[&str]| -> Vec<Value> {
            let lines = lines(&state, &[flags, key].concat());
            lines.iter().map(|line| serde_json::from_str(line).expect("JSON")).collect()
        };
        let expected = [of_key(&["--key", "k3"]), of_key(&["--total"])];
        let mut groups = about["plot"]["groups"].as_array().expect("groups").clone();
        if about["plot"]["matrix"] == true {
            let pair = json!({ "name": "b~d", "value": ["correlation", 1, 3], "interval": ["correlation_interval", 1, 3] });
            groups.push(json!({ "name": "correlation:b~d", "series": [pair] }));
        }
        assert!(groups.iter().any(|group| group["name"] == "records"));
        let mut compared = 0;
        for group in groups {
            let name = group["name"].as_str().expect("a name");
            let found = site.readings(&format!("estimate={named}&of={name}&key=k3&key=all"));
            assert_eq!((&found["from"], &found["to"], &found["step"]), (&json!(1), &json!(20), &json!(1)));
            assert_eq!(found["epochs"], json!((1..=20).collect::<Vec<_>>()));
            for (key, lines) in found["keys"].as_array().expect("keys").iter().zip(&expected) {
                assert_eq!(key["key"], lines[0]["key"]);
                for (series, own) in group["series"]
                    .as_array()
                    .expect("series")
                    .iter()
                    .zip(key["series"].as_array().expect("series"))
                {
                    for (at, line) in lines.iter().enumerate() {
                        let got = ["value", "lower", "upper"].map(|end| own[end][at].as_f64());
                        assert_eq!(
                            got,
                            located(line, series, reach),
                            "{estimate} {name} {} {line}",
                            series["name"]
                        );
                        compared += usize::from(got[0].is_some());
                    }
                    assert_eq!(own["value"].as_array().map(Vec::len), Some(20));
                }
                let good =
                    lines.iter().map(|line| u8::from(line.get("quality").is_none_or(|word| word == "good")));
                assert_eq!(key["good"], json!(good.collect::<Vec<_>>()));
                let last = &lines[19];
                assert_eq!(&key["quality"], last.get("quality").unwrap_or(&json!("good")));
            }
        }
        assert!(compared > 100, "{estimate}: {compared} numbers");
    }
}

#[test]
fn readings_of_all_keys_are_one_series_and_ranges_are_kept() {
    let lab = Lab::new();
    let state = published(&lab);
    let site = Site::of(&state, &[]);
    let all = site.readings("");
    assert_eq!(all["of"], json!(["mean:a"]), "the first series is the default");
    let names: Vec<_> = all["keys"].as_array().expect("keys").iter().map(|key| key["key"].clone()).collect();
    assert_eq!(names, ["k0", "k1", "k2", "k3", "k4", "k5", "k6", "all"]);
    assert_eq!(site.readings("of=sd")["of"], json!(["sd:a"]), "one series of all keys");
    let searched = |text: &str| -> Vec<Value> {
        let found = site.readings(&format!("q={text}"));
        found["keys"].as_array().expect("keys").iter().map(|key| key["key"].clone()).collect()
    };
    assert_eq!(searched("K3"), ["k3"]);
    assert_eq!(searched("k").len(), 7);
    assert!(searched("nowhere").is_empty());
    let of_one = |query: &str| site.readings(&format!("key=k4&of=sd&{query}"));
    assert_eq!(of_one("")["of"], json!(["sd:a", "sd:b", "sd:c", "sd:d", "sd:e"]));
    assert_eq!(of_one("from=5&to=7")["epochs"], json!([5, 6, 7]));
    assert_eq!(of_one("last=3")["epochs"], json!([18, 19, 20]));
    assert_eq!(of_one("from=99&to=99")["epochs"], json!([20]));
    let (whole, part) = (of_one(""), of_one("from=5&to=7"));
    let of = |found: &Value| found["keys"][0]["series"][2]["value"].as_array().expect("values").clone();
    assert_eq!(of(&whole)[4..7], of(&part), "a range also begins with the first epoch of the log");
    assert_eq!(site.readings("")["keys"], all["keys"], "kept for the next reader");
}
