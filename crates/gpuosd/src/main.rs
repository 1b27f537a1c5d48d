//! gpuosd: see the library of the same name.

use std::ffi::OsString;
use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{CommandFactory, Parser};
use gpuos_host::steps::device_groups::ask;
use gpuosd::clear;
use gpuosd::options::Options;

fn main() -> ExitCode {
    let words: Vec<OsString> = std::env::args_os().skip(1).collect();
    if let Some((flag, words)) = words.split_first()
        && flag == ask::FLAG
    {
        print!("{}", ask::answer(words));
        return ExitCode::SUCCESS;
    }
    if let Some((flag, words)) = words.split_first()
        && flag == clear::FLAG
    {
        return clear::run(words);
    }
    let options = match Options::try_parse() {
        Ok(options) => options,
        Err(e) => {
            let _ = e.print();
            let asked = matches!(e.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion);
            return ExitCode::from(if asked { 0 } else { 2 });
        }
    };
    if options.man {
        let page = clap_mangen::Man::new(Options::command())
            .section("8")
            .manual("gpuos");
        let printed = page.render(&mut std::io::stdout());
        return ExitCode::from(u8::from(printed.is_err()));
    }
    gpuos_daemon::log::start("gpuosd", &options.node_name());
    match gpuosd::run::run(&options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            tracing::error!("{e:#}");
            ExitCode::from(1)
        }
    }
}
