//! Time to a certified optimal strategy, at a relative gap of 10⁻⁶.
//!
//! `cargo bench -p hushflow-mechanism --bench optimize`, to be compared with `python
//! mechanism/benches/baseline/optimize.py`. Known optima are checked in every run; `verify` is the
//! independent check of a certificate.

use divan::Bencher;
use hushflow_mechanism::optimize::{
    OptimizerSettings, Optimum, QuadraticForm, certificate, coa, multi_epoch,
};
use std::ops::ControlFlow;

fn main() {
    divan::main();
}

fn form(workload: &str, steps: usize) -> QuadraticForm {
    let workload = workload.parse().expect("a workload");
    QuadraticForm::from_workload(&workload, steps).expect("at least one step")
}

fn single(form: &QuadraticForm) -> Optimum {
    let optimum =
        coa(form, &OptimizerSettings::default(), &mut |_| ControlFlow::Continue(())).expect("an optimum");
    assert!(optimum.relative_gap() <= 1e-6);
    optimum
}

fn repeated_participations(form: &QuadraticForm, count: usize, gap: usize) -> Optimum {
    let optimum =
        multi_epoch(form, count, gap, &OptimizerSettings::default(), &mut |_| ControlFlow::Continue(()))
            .expect("an optimum");
    assert!(optimum.relative_gap() <= 1e-6 && optimum.certificate.largest_overlap() <= 1.0);
    optimum
}

fn assert_near(objective: f64, expected: f64) {
    assert!((objective / expected - 1.0).abs() < 1.1e-6, "{objective} against {expected}");
}

#[divan::bench(args = [(512, 3842.168454832), (1024, 8944.3317715817)], sample_count = 5, sample_size = 1)]
fn coa_prefix(bencher: Bencher, (steps, expected): (usize, f64)) {
    bencher.bench_local(|| assert_near(single(&form("prefix", steps)).objective, expected));
}

#[divan::bench(sample_count = 5, sample_size = 1)]
fn coa_all_ranges_1024(bencher: Bencher) {
    let queries = 1024.0 * 1025.0 / 2.0;
    bencher.bench_local(|| {
        let form = QuadraticForm::all_ranges(1024).expect("at least one step");
        assert_near(single(&form).objective, queries * 3.515083165f64.powi(2));
    });
}

#[divan::bench(args = ["average", "exponential:0.9", "exponential:0.99", "window:10"], sample_count = 3, sample_size = 1)]
fn coa_1024(bencher: Bencher, workload: &str) {
    bencher.bench_local(|| single(&form(workload, 1024)));
}

#[divan::bench(sample_count = 1, sample_size = 1)]
fn coa_prefix_2048(bencher: Bencher) {
    bencher.bench_local(|| single(&form("prefix", 2048)));
}

#[divan::bench(sample_count = 5, sample_size = 1)]
fn multi_epoch_16x64(bencher: Bencher) {
    bencher.bench_local(|| repeated_participations(&form("prefix", 1024), 16, 64));
}

#[divan::bench(sample_count = 1, sample_size = 1)]
fn multi_epoch_20x100(bencher: Bencher) {
    bencher.bench_local(|| {
        assert_near(repeated_participations(&form("prefix", 2000), 20, 100).objective, 653163.05648)
    });
}

#[divan::bench(sample_count = 1, sample_size = 1)]
fn verify_2048(bencher: Bencher) {
    let form = form("prefix", 2048);
    let optimum = single(&form);
    bencher.bench_local(|| {
        let verified = certificate::verify(&optimum, &form).expect("a sound certificate");
        assert!(verified.objective / verified.lower_bound <= 1.0 + 1e-6);
    });
}
