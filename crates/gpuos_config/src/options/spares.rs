//! `--gpuos-spares`: nodes beyond those of the program, for when it loses some.
use gpuos_model::words::{check_value, not_understood};

use super::OptionError;

const FORM: &str = "a number of nodes from 1 to 1023";

/// The most spare nodes of a job. Own choice, far above what any job has use for.
const MOST: u16 = 1023;

/// Reads the value of `--gpuos-spares`.
///
/// # Errors
/// It is no such number.
pub fn parse_spares(value: &str) -> Result<u16, OptionError> {
    let error = |reason: &str| OptionError::new("--gpuos-spares", value, reason, FORM);
    check_value(value).map_err(|reason| error(&reason))?;
    if value.is_empty() || !value.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(error(&not_understood(value)));
    }
    match value.parse() {
        Ok(0) => Err(error(
            "0 asks for no spare node; leave the option out for that",
        )),
        Ok(spares @ 1..=MOST) => Ok(spares),
        _ => Err(error("that is more than a job can have")),
    }
}

#[cfg(test)]
mod tests {
    use super::parse_spares;

    #[test]
    fn spares_are_a_number() {
        assert_eq!(parse_spares("1"), Ok(1));
        assert_eq!(parse_spares("1023"), Ok(1023));
        for bad in [
            "",
            "0",
            "1024",
            "65536",
            "-1",
            "+1",
            "1x",
            " 1",
            "auto",
            "99999999999999999999",
        ] {
            let said = parse_spares(bad).unwrap_err().to_string();
            assert!(said.starts_with("--gpuos-spares="), "{said}");
            assert!(
                said.ends_with("write a number of nodes from 1 to 1023"),
                "{said}"
            );
        }
    }
}
