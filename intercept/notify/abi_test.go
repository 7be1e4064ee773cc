package notify

import (
	"testing"

	"github.com/tsugiki/tsugiki/endpoint"
	"github.com/tsugiki/tsugiki/internal/testkit"
)

// The numbers and layouts are those of include/tsugiki/graft.h, which programs include.
func TestNumbersOfAFGraft(t *testing.T) {
	testkit.CheckC(t, "../../include/tsugiki/graft.h", map[string]any{
		"AF_GRAFT":                 familyGraft,
		"IPPROTO_GRAFT":            levelGraft,
		"AF_GRAFT_EPNAME_MAX":      graftNameMax,
		"AF_GRAFT_EPNAME_MAX - 1":  endpoint.NameMax,
		"GRAFT_SO_DELAYED":         soDelayed,
		"GRAFT_SO_DELAYED_EXECUTE": soDelayedExecute,
		"GRAFT_SO_DELAYED_RESULT":  soDelayedResult,
		"GRAFT_SO_TRANSPARENT":     soTransparent,
		"GRAFT_NAME_TRANSPARENT":   nameTransparent,
		"GRAFT_SSO_TRANS_SIZE":     transparentMax,

		"sizeof(struct sockaddr_gr)":               sockaddrGrSize,
		"offsetof(struct sockaddr_gr, sgr_epname)": sockaddrGrSize - graftNameMax,
		"sizeof(struct graft_sso_result)":          resultSize,
		"sizeof(struct graft_sso_trans)":           transparentHead,
		"offsetof(struct graft_sso_trans, optlen)": transparentHead - 4,
		"sizeof(struct sockaddr_storage)":          sockaddrMax,
	})
	testkit.CheckC(t, "../../policy/c/board.h", map[string]any{"BOARD_ADDRESS_MAX": gateAddressMax})
}
