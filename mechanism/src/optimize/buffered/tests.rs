use super::*;
use crate::strategy::Factorization as _;
fn go() -> impl FnMut(&Progress) -> ControlFlow<()> {
    |_: &Progress| ControlFlow::Continue(())
}
#[test]
fn explore() {
    let rep = Some(Repetition { count: 20, gap: 100 });
    let fit = fit_blt(&Workload::Prefix, Some(2000), rep, Objective::Rmse, 2, &mut go()).unwrap();
    eprintln!("participation {}", fit.value * fit.value * 2000.0);
    for b in [3, 4, 8] {
        let now = std::time::Instant::now();
        let fit = fit_blt(&Workload::Prefix, Some(2000), rep, Objective::Rmse, b, &mut go()).unwrap();
        eprintln!("participation {b} {} {:?}", fit.value * fit.value * 2000.0, now.elapsed());
    }
    for (w, n) in [
        ("exponential:0.9", Some(512)),
        ("exponential:0.99", Some(512)),
        ("exponential:0.9", None),
        ("exponential:0.999", Some(1_000_000)),
        ("window:10", Some(512)),
        ("window:10", None),
        ("window:100", Some(10000)),
        ("momentum:0.95", Some(2000)),
        ("adam:0.99", Some(2000)),
        ("adam:0.999", None),
        ("average", Some(512)),
        ("average", Some(100000)),
        ("prefix", Some(1)),
        ("prefix", Some(2)),
        ("prefix", Some(10)),
    ] {
        for b in [1, 2, 4, 8] {
            let now = std::time::Instant::now();
            let w: Workload = w.parse().unwrap();
            let fit = fit_blt(&w, n, None, Objective::Rmse, b, &mut go()).unwrap();
            let took = now.elapsed();
            let strategy =
                crate::strategy::buffered::Buffered::new("blt:1".parse().unwrap(), fit.parameters.clone())
                    .unwrap();
            let steps = n.unwrap_or(100_000);
            let rows: Vec<f64> = strategy.decoder_row_norms(&w, steps).collect();
            let norm = strategy.max_column_norm_squared(strategy.parameters().steps());
            let real = if n.is_some() {
                norm * rows.iter().map(|r| r * r).sum::<f64>() / steps as f64
            } else {
                norm * rows[rows.len() - 1].powi(2)
            };
            eprintln!(
                "{w} {n:?} {b}: {:.6} total {:.6} real/value-1 {:.2e} {} {:?}",
                fit.value,
                fit.value * fit.value * steps as f64,
                real.sqrt() / fit.value - 1.0,
                fit.parameters.count(),
                took
            );
        }
    }
}
