package gate

import (
	"errors"
	"net"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/internal/testkit"
)

// A gate that closes the connection may have had no memory for its greeting. It has ended only if it
// refuses the next connection.
func TestAdoptOfOneThatHangsUp(t *testing.T) {
	greeting, refusal := message(version, hello, 0, 0), message(version, refused, 0, 0)
	for name, tt := range map[string]struct {
		answers  [][]byte // to one connection after the other; nil: none
		ends     bool     // afterwards; else it closes each connection that comes
		patience time.Duration
		want     error // nil: one that another version of the gate does not explain
	}{
		"and then answers":  {[][]byte{nil, nil, refusal}, false, testkit.Patience, ErrRefused},
		"without the files": {[][]byte{greeting}, false, testkit.Patience, nil},
		"and has ended":     {[][]byte{nil}, true, testkit.Patience, ErrGone},
		"each time":         {nil, false, time.Millisecond, ErrSilent},
	} {
		t.Run(name, func(t *testing.T) {
			socket := filepath.Join(t.TempDir(), "1")
			l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: socket, Net: "unixpacket"})
			if err != nil {
				t.Fatal(err)
			}
			l.SetUnlinkOnClose(false)
			ended := make(chan error)
			go func() { ended <- hangUpAfter(l, tt.answers, tt.ends) }()
			g, err := Adopt(socket, tt.patience)
			if g != nil || err == nil || tt.want != nil && !errors.Is(err, tt.want) {
				t.Errorf("%v, %v, want %v", g, err, tt.want)
			}
			if tt.want == nil && errors.Is(err, ErrProtocol) {
				t.Errorf("%v, and the gate is of this version", err)
			}
			l.Close()
			if err := <-ended; !errors.Is(err, net.ErrClosed) {
				t.Error(err)
			}
			if _, err := Adopt(socket, testkit.Patience); !errors.Is(err, ErrGone) {
				t.Errorf("where nobody listens: %v", err)
			}
			if err := unix.Unlink(socket); err != nil {
				t.Error(err)
			}
		})
	}
}

// hangUpAfter gives the answers, and closes each connection, until l is closed.
func hangUpAfter(l *net.UnixListener, answers [][]byte, ends bool) error {
	for i := 0; ; i++ {
		if ends && i == len(answers) {
			l.Close()
		}
		conn, err := l.Accept()
		if err != nil {
			return err
		}
		if i < len(answers) && answers[i] != nil {
			if _, err := conn.Write(answers[i]); err != nil {
				return err
			}
		}
		conn.Close()
	}
}
