//! Output of `run` for several views: they share one stream, and every line is complete.

use crate::harness::{Lab, Stream, finish, hushflow};

/// The output is far larger than a buffer, so separate buffers for each view would cut lines.
#[test]
fn lines_of_several_views_do_not_cut_each_other() {
    let lab = Lab::new();
    let stream = Stream { rows: 1_000, epochs: 10 };
    lab.write("data.csv", stream.csv());
    let names = ["prefix", "average", "window:3"];
    let views = names
        .map(|name| format!("\n[[views]]\nname = '{name}'\nworkload = '{name}'\nestimate = 'moments'\n"));
    let pipeline = lab.write("pipeline.toml", stream.pipeline("data.csv", &views.concat()));
    let mut run = hushflow(["run", "--json"]);
    let lines = finish(run.arg(pipeline).arg("--state").arg(lab.path("state"))).succeeded().json();
    let of_view = |name: &str| lines.iter().filter(|line| line["view"] == name).count();
    assert!(of_view("prefix") >= 7 * 9, "every key at every epoch");
    assert_eq!(names.map(of_view), [lines.len() / 3; 3]);
}
