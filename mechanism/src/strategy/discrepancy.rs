//! Distance of the C that runs from the matrix that sensitivities are computed from.

/// Bound of the distance of the C that runs from the matrix Ĉ that its strategy returns.
///
/// Let u be contributions of norm at most 1, numbers or vectors, at the steps of a pattern of k
/// steps, and V the largest `‖Ĉu‖²` over all such u. Then `‖(C − Ĉ)u‖ ≤ relative·√V + k·column`.
/// This holds with
///
/// - `relative` = η if `C = (I + R)Ĉ` and `‖R‖₂ ≤ η`, because `‖RĈu‖ ≤ η‖Ĉu‖`;
/// - `relative` = η if Ĉ ≥ 0 and `|C − Ĉ| ≤ ηĈ` entry by entry, because row t of `(C − Ĉ)u` has
///   norm at most `η Σ_i Ĉ_ti‖u_i‖`, which is η times row t of Ĉu for the contributions `‖u_i‖`
///   along one axis;
/// - `column` = h if no column of C − Ĉ is longer than h, by the triangle inequality.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Discrepancy {
    /// Relative to the sensitivity.
    pub relative: f64,
    /// Per column, in the units of entries.
    pub column: f64,
}

impl Discrepancy {
    /// For Ĉ = C.
    pub const NONE: Self = Self { relative: 0.0, column: 0.0 };

    /// Bound for a block matrix whose blocks have these two bounds.
    pub(crate) fn of_either(self, other: Self) -> Self {
        Self { relative: self.relative.max(other.relative), column: self.column.max(other.column) }
    }
}
