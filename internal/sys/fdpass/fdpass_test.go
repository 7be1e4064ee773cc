package fdpass

import (
	"encoding/binary"
	"errors"
	"io"
	"os"
	"slices"
	"testing"

	"golang.org/x/sys/unix"
)

// message is control data of one level and type.
func message(level, kind int32, length uint64, data []byte) []byte {
	b := make([]byte, unix.CmsgSpace(len(data)))
	binary.NativeEndian.PutUint64(b, length)
	binary.NativeEndian.PutUint32(b[8:], uint32(level))
	binary.NativeEndian.PutUint32(b[12:], uint32(kind))
	copy(b[unix.CmsgLen(0):], data)
	return b
}

func numbers(fds ...int32) (data []byte) {
	for _, fd := range fds {
		data = binary.NativeEndian.AppendUint32(data, uint32(fd))
	}
	return data
}

func TestDescriptors(t *testing.T) {
	credentials := message(unix.SOL_SOCKET, unix.SCM_CREDENTIALS, uint64(unix.CmsgLen(12)), make([]byte, 12))
	for name, c := range map[string]struct {
		control []byte
		want    []int
	}{
		"nothing":                   {nil, []int{9}},
		"two":                       {unix.UnixRights(3, 4), []int{9, 3, 4}},
		"behind credentials":        {append(slices.Clone(credentials), unix.UnixRights(5)...), []int{9, 5}},
		"twice":                     {append(unix.UnixRights(5), unix.UnixRights(6)...), []int{9, 5, 6}},
		"of another level":          {message(unix.SOL_IP, unix.SCM_RIGHTS, uint64(unix.CmsgLen(4)), numbers(3)), []int{9}},
		"half a number":             {message(unix.SOL_SOCKET, unix.SCM_RIGHTS, uint64(unix.CmsgLen(6)), numbers(3, 4)), []int{9, 3}},
		"a length that lies":        {message(unix.SOL_SOCKET, unix.SCM_RIGHTS, 1<<40, numbers(3)), []int{9}},
		"before a length that lies": {append(unix.UnixRights(7), message(unix.SOL_SOCKET, unix.SCM_RIGHTS, 3, numbers(3))...), []int{9, 7}},
		"cut off":                   {unix.UnixRights(3, 4)[:unix.SizeofCmsghdr-1], []int{9}},
	} {
		if got := Descriptors(c.control, []int{9}); !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

// A file that one end sends is the other end's.
func TestPair(t *testing.T) {
	ours, theirs, err := Pair("test")
	if err != nil {
		t.Fatal(err)
	}
	defer ours.Close()
	defer theirs.Close()
	if err := unix.Sendmsg(int(theirs.Fd()), []byte("x"), unix.UnixRights(int(theirs.Fd())), nil, 0); err != nil {
		t.Fatal(err)
	}
	control := make([]byte, unix.CmsgSpace(4))
	_, n, _, _, err := ours.ReadMsgUnix(make([]byte, 1), control)
	if err != nil {
		t.Fatal(err)
	}
	files := Files(control[:n], "sent")
	if len(files) != 1 || files[0].Name() != "sent" {
		t.Fatalf("received %v", files)
	}
	defer files[0].Close()
	sent, err1 := theirs.Stat()
	received, err2 := files[0].Stat()
	if err1 != nil || err2 != nil || !os.SameFile(sent, received) {
		t.Errorf("received %v (%v), sent %v (%v)", received, err2, sent, err1)
	}
	flags, err := unix.FcntlInt(files[0].Fd(), unix.F_GETFD, 0)
	if err != nil || flags&unix.FD_CLOEXEC == 0 {
		t.Errorf("flags %#x (%v), want close-on-exec", flags, err)
	}
}

// No message is lost if its sender closes at once.
func TestReadMsg(t *testing.T) {
	for range 5000 {
		ours, theirs, err := Pair("test")
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			_, _ = theirs.Write([]byte("last"))
			theirs.Close()
		}()
		var buf [8]byte
		for _, want := range []struct {
			text string
			err  error
		}{{"last", nil}, {"", io.EOF}} {
			n, _, _, err := ReadMsg(ours, buf[:], nil)
			if string(buf[:n]) != want.text || !errors.Is(err, want.err) {
				t.Fatalf("read %q, %v; want %q, %v", buf[:n], err, want.text, want.err)
			}
		}
		ours.Close()
	}
}

func FuzzDescriptors(f *testing.F) {
	f.Add(unix.UnixRights(3, 4))
	f.Add(unix.UnixRights(1)[:17])
	f.Fuzz(func(t *testing.T, control []byte) {
		if n := len(Descriptors(control, nil)); n > len(control)/4 {
			t.Errorf("%d descriptors in %d bytes", n, len(control))
		}
	})
}
