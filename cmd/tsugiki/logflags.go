package main

import (
	"fmt"
	"io"
	"log/slog"

	"github.com/spf13/pflag"
)

// logFlags are those of daemons without a configuration file.
type logFlags struct{ level, format string }

func (f *logFlags) register(flags *pflag.FlagSet) {
	flags.StringVar(&f.level, "log-level", "info", "least level of log lines: debug, info, warn or error")
	flags.StringVar(&f.format, "log-format", "text", "format of log lines: text or json")
}

func (f *logFlags) open(w io.Writer) (*slog.Logger, error) {
	var level slog.Level
	if err := level.UnmarshalText([]byte(f.level)); err != nil {
		return nil, usageError{fmt.Errorf("--log-level %q is unknown; write debug, info, warn or error", f.level)}
	}
	if f.format != "text" && f.format != "json" {
		return nil, usageError{fmt.Errorf("--log-format %q is unknown; write text or json", f.format)}
	}
	return newLog(w, f.format, level), nil
}
