package main

import (
	"os"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/tsugiki/tsugiki/internal/config"
	"github.com/tsugiki/tsugiki/internal/testkit/script"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){"tsugiki-runtime": main})
}

// TestScripts runs the scripts of testdata/script, with a shell script as the real runtime.
func TestScripts(t *testing.T) {
	if _, err := os.Stat(config.DefaultPath); err == nil {
		t.Skipf("skip: needs a machine without %s, which the command reads", config.DefaultPath)
	}
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/script",
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		Cmds:                script.Commands(func(run func() error) error { return run() }),
	})
}
