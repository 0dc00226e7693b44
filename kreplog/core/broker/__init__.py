"""One broker process as a whole: the events between its cores, and the rules that belong to none of them."""
