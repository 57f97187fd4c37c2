"""Networks that draft from what a target's layers put out: blocks at once (DFlash), token by token (EAGLE), or by heads (Medusa)."""
