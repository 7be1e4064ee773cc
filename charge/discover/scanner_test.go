package discover

import (
	"os"
	"testing"
)

func TestMain(m *testing.M) { os.Exit(run(m)) }
