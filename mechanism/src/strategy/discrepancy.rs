//! How far the C that runs is from the matrix that sensitivities are computed from.

/// How far the C that runs can be from the matrix Ĉ that its strategy gives, at most.
///
/// Let u be contributions of norm at most 1, numbers or vectors, at the steps of a pattern of k steps, and V the
/// largest `‖Ĉu‖²` over all of these. Then `‖(C − Ĉ)u‖ ≤ relative·√V + k·column`. This holds with
///
/// - `relative` = η where `C = (I + R)Ĉ` and `‖R‖₂ ≤ η`, because `‖RĈu‖ ≤ η‖Ĉu‖`;
/// - `relative` = η where Ĉ ≥ 0 and `|C − Ĉ| ≤ ηĈ` entry by entry, because row t of `(C − Ĉ)u` is at most
///   `η Σ_i Ĉ_ti‖u_i‖` long, which is η times row t of Ĉu for the contributions `‖u_i‖` along one axis;
/// - `column` = h where no column of C − Ĉ is longer than h, by the triangle inequality.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Discrepancy {
    /// As a share of the sensitivity.
    pub relative: f64,
    /// For each column, in the units of entries.
    pub column: f64,
}

impl Discrepancy {
    /// Ĉ is C.
    pub const NONE: Self = Self { relative: 0.0, column: 0.0 };

    /// What holds for two blocks of one matrix, if these two hold for one each.
    pub(crate) fn of_either(self, other: Self) -> Self {
        Self { relative: self.relative.max(other.relative), column: self.column.max(other.column) }
    }
}
