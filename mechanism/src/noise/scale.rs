//! temporary
/// scale
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoiseScale {
    w: u32,
    k: u32,
}
impl NoiseScale {
    /// exact
    pub fn new(w: u32, k: u32) -> Option<Self> {
        (w > 0 && k <= 64).then_some(NoiseScale { w, k })
    }
    /// at least
    pub fn at_least(sigma: f64) -> Option<Self> {
        let width = (sigma / 64.0).ceil();
        let k = (width.log2().ceil() as i32 - 32).max(0) as u32;
        NoiseScale::new((width / 2f64.powi(k as i32)).ceil() as u32, k)
    }
    /// w
    pub fn w(&self) -> u32 {
        self.w
    }
    /// k
    pub fn k(&self) -> u32 {
        self.k
    }
    /// W
    pub fn bin_width(&self) -> u128 {
        u128::from(self.w) << self.k
    }
    /// sigma
    pub fn sigma(&self) -> f64 {
        64.0 * self.bin_width() as f64
    }
}
