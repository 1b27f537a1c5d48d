//! docs/reference/options.md has every option as it is.

use gpuos_config::options::OPTIONS;

#[path = "../../../tests/reference/page.rs"]
mod page;

const HEAD: &str = "\
# Options of sbatch, salloc and srun

What gpuos adds; [user/options.md](../user/options.md) is the short form. This page is made of the table in the code by `make reference`, as
`sbatch --help` and `man gpuos-options` are.
";

#[test]
fn the_page_has_every_option_as_it_is() {
    let mut text = HEAD.to_string();
    for option in OPTIONS {
        let details: Vec<&str> = option.details.split_whitespace().collect();
        text += &format!(
            "\n## `--{}={}`\n\n{}\n\nDefault in the environment: `{}`.\n",
            option.name,
            option.argument,
            details.join(" ").replace('<', "\\<"),
            option.environment
        );
    }
    page::hold("options.md", &text);
}
