//! gpuos_mover: see the library gpuos_moverd.

use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{CommandFactory, Parser};
use gpuos_moverd::options::Options;

fn main() -> ExitCode {
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
    gpuos_daemon::log::start("gpuos_mover", &options.node_name());
    match gpuos_moverd::run::run(&options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            tracing::error!("{e:#}");
            ExitCode::from(1)
        }
    }
}
