package card

import (
	"bytes"
	"errors"
	"fmt"
	"os/exec"
)

// Offload asks ethtool: the feature has no number of its own, and ethtool knows its name's.
func (devlink) Offload(link string) error {
	program, err := exec.LookPath("ethtool")
	if err != nil {
		return errors.New("there is no ethtool; install it")
	}
	if out, err := exec.Command(program, "-K", link, "hw-tc-offload", "on").CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, bytes.TrimSpace(out))
	}
	return nil
}
