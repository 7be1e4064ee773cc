package main

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestRulesToNameServers(t *testing.T) {
	const text = "# stub\nnameserver 127.0.0.53\nsearch example.org\nnameserver ::1\nnameserver 192.0.2.1\n nameserver\t127.0.0.1 x\nnameserver nobody\nnameserver"
	want := []string{"127.0.0.53:53=127.0.0.1", "[::1]:53=::1", "127.0.0.1:53=127.0.0.1"}
	if diff := cmp.Diff(want, toNameServers(text)); diff != "" {
		t.Error(diff)
	}
}
