"""One broker process as a whole: what passes between its cores, and the rules that belong to none of them."""
