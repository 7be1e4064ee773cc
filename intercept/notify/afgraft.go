package notify

import (
	"golang.org/x/sys/unix"

	"github.com/tsugiki/tsugiki/afgraft"
	"github.com/tsugiki/tsugiki/gate"
	"github.com/tsugiki/tsugiki/graft"
)

func succeed() graft.Answer              { return graft.Answer{Action: graft.Succeed} }
func fail(errno unix.Errno) graft.Answer { return graft.Answer{Action: graft.Fail, Errno: errno} }
func intArg(r gate.Request, i int) int   { return int(int32(r.Args[i])) }

// namer is the program of a call as package afgraft sees it.
type namer struct{ *program }

func (n namer) AFGraft(number int) (afgraft.State, bool, error) {
	return n.s.engine.AFGraftState(n.program, number)
}

func (n namer) Take(number int) (*afgraft.Socket, error) {
	return n.s.engine.AFGraftSocket(n.program, number)
}

func (n namer) ReadAt(at uint64, b []byte) error  { return n.readAt(at, b) }
func (n namer) WriteAt(at uint64, b []byte) error { return n.writeAt(at, b) }

// bindNamed answers bind(2) with the address that the gate has read.
func (s *Supervisor) bindNamed(p *program) (graft.Answer, error) {
	r := p.request
	if _, is, err := s.engine.AFGraftState(p, r.Number); !is {
		return graft.Answer{}, err
	}
	name, errno := afgraft.ParseBind(r.Address, intArg(r, 2))
	if errno != 0 {
		return fail(errno), nil
	}
	return s.engine.BindNamed(p, r.Number, name)
}

// optionOrName answers the calls for options and names of sockets that may be AF_GRAFT ones.
func (s *Supervisor) optionOrName(p *program) (graft.Answer, error) {
	r := p.request
	switch n := (namer{p}); r.Call {
	case gate.SetOption:
		return answerOf(afgraft.SetOption(n, r.Number, intArg(r, 1), intArg(r, 2), r.Args[3], intArg(r, 4)))
	case gate.GetOption:
		return answerOf(afgraft.GetOption(n, r.Number, intArg(r, 1), intArg(r, 2), r.Args[3], r.Args[4]))
	default:
		return answerOf(afgraft.GetName(n, r.Number, r.Args[1], r.Args[2]))
	}
}

func answerOf(r afgraft.Reply, err error) (graft.Answer, error) {
	switch {
	case err != nil || !r.Ours:
		return graft.Answer{}, err
	case r.Errno != 0:
		return fail(r.Errno), nil
	}
	return succeed(), nil
}
