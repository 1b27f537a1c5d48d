//! Refusals of options, as tables: a value may be of the accepted form, and the cluster or the rest of the request does not go
//! with it.

/// Makes a table of refusals. A row is a function that makes an [`OptionError`](crate::options::OptionError) of the value that was given:
/// its docstring says what it means, `on` names the option, or an argument that has it; then the reason, and after `write` what is
/// accepted. `REFUSALS` is there in tests.
#[macro_export]
macro_rules! refusals {
    ($(
        $(#[doc = $means:literal])+
        $visible:vis fn $name:ident($($part:ident),*) on $option:tt = $reason:literal, write $accepted:literal;
    )+) => {
        $(
            $(#[doc = $means])+
            $visible fn $name(
                given: impl ::std::fmt::Display
                $(, $part: impl ::std::fmt::Display)*
            ) -> $crate::options::OptionError {
                $crate::options::OptionError::new(
                    &$option.to_string(),
                    &given.to_string(),
                    &::std::format!($reason),
                    &::std::format!($accepted),
                )
            }
        )+

        /// All refusals of this table, in its order.
        #[cfg(test)]
        pub const REFUSALS: &[::gpuos_model::messages::Row] = &[$(
            ::gpuos_model::messages::Row {
                name: ::std::stringify!($name),
                text: ::std::concat!(::std::stringify!($option), "={value}: ", $reason, "; write ", $accepted),
                means: ::std::concat!($($means),+),
                action: "",
            },
        )+];
    };
}

crate::refusals! {
    /// No GPU of the cluster has slices like these, or no node has so many at once. The sentence names the profiles that
    /// there are.
    pub(crate) fn not_served(reason, accepted) on "--gpuos-mig" = "{reason}", write "{accepted}";
    /// Kinds of GPUs have different profiles, and no kind has all that were named.
    pub(crate) fn not_of_one_kind() on "--gpuos-mig" = "no kind of GPU has all of them", write "fewer slices";
}

#[cfg(test)]
#[path = "../../../../tests/reference/messages.rs"]
mod page;

/// What each option says of a value that is none, and the table.
#[test]
fn the_page_in_the_reference_has_every_refusal_of_an_option() {
    use crate::options::{JobOptions, OPTIONS};
    use gpuos_model::messages::Row;
    let of = |option: &crate::options::OptionHelp| {
        let said = JobOptions::default()
            .set(option.name, "!")
            .expect_err("no value");
        Row {
            name: "",
            text: said.to_string().leak(),
            means: "",
            action: "",
        }
    };
    let values: Vec<Row> = OPTIONS.iter().map(of).collect();
    page::hold(&[("values", &values), ("pools", REFUSALS)], &[]);
}
